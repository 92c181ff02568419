//! Finds out which files are customizations, and groups them by directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ahp_types::state::{
    ChildCustomization, Customization, CustomizationDegradedState, CustomizationLoadState, CustomizationLoadedState,
    CustomizationType, DirectoryCustomization, McpServerCustomization, McpServerState, McpServerStoppedState,
    RuleCustomization, SkillCustomization,
};
use serde_json::Value;

use super::CustomizeConfig;
use super::front_matter::FrontMatter;
use super::walk::{DirectoryWalk, WalkEntry, head};
use crate::files::uri_of;

/// Everything in one working directory: directories by path, then MCP servers by name.
pub(super) fn search(dir: &Path, config: &CustomizeConfig) -> Vec<Customization> {
    let Some(mut walk) = DirectoryWalk::new(dir, Path::new(""), config.max_depth, config.max_entries) else {
        return Vec::new();
    };
    let root = walk.root().to_owned();
    let mut classified = Classified::default();
    for entry in walk.by_ref() {
        if classified.count >= config.max_found {
            classified.over = true;
            break;
        }
        classified.add(&root, &entry, config);
    }
    let cut = (walk.cut || classified.over).then(|| "not everything here was looked at: there is too much".to_owned());
    classified.into_list(&root, cut.as_deref())
}

/// The customizations found so far, by directory and kind.
#[derive(Default)]
struct Classified {
    rules: BTreeMap<PathBuf, Vec<ChildCustomization>>,
    skills: BTreeMap<PathBuf, Vec<ChildCustomization>>,
    servers: Vec<Customization>,
    count: usize,
    over: bool,
}

impl Classified {
    fn add(&mut self, root: &Path, entry: &WalkEntry, config: &CustomizeConfig) {
        let Some(name) = entry.path.file_name().and_then(|name| name.to_str()).filter(|_| !entry.is_dir) else {
            return;
        };
        let Some(parent) = entry.path.parent() else { return };
        let front_matter = || FrontMatter::of(&head(entry, config.max_head_bytes).unwrap_or_default());
        if is_rule(name, parent) {
            let always = !name.ends_with(INSTRUCTIONS);
            self.rules.entry(parent.to_owned()).or_default().push(rule(root, &entry.path, &front_matter(), always));
            self.count += 1;
        } else if let Some(skills) = skills_directory(name, parent) {
            self.skills.entry(skills.to_owned()).or_default().push(skill(parent, &entry.path, &front_matter()));
            self.count += 1;
        } else if name == ".mcp.json" && parent == root {
            // One byte more than the limit shows that the file is too large.
            let manifest =
                head(entry, config.max_manifest_bytes + 1).filter(|text| text.len() <= config.max_manifest_bytes);
            self.servers = manifest.map(|manifest| servers(&uri_of(&entry.path), &manifest)).unwrap_or_default();
            self.count += self.servers.len();
        }
    }

    fn into_list(self, root: &Path, cut: Option<&str>) -> Vec<Customization> {
        let directory = |(path, children): (PathBuf, Vec<ChildCustomization>),
                         contents: CustomizationType,
                         kind: &str| {
            let uri = uri_of(&path);
            let load = match cut {
                None => CustomizationLoadState::Loaded(CustomizationLoadedState {}),
                Some(why) => CustomizationLoadState::Degraded(CustomizationDegradedState { message: why.to_owned() }),
            };
            Customization::Directory(DirectoryCustomization {
                id: format!("{kind}:{uri}"),
                uri,
                name: name_of(root, &path),
                icons: None,
                range: None,
                meta: None,
                client_id: None,
                load: Some(load),
                children: Some(children),
                enabled: true,
                contents,
                // Not writable, because nothing watches the directory for files that a client puts there.
                writable: false,
            })
        };
        let rules = self.rules.into_iter().map(|entry| directory(entry, CustomizationType::Rule, "rules"));
        let skills = self.skills.into_iter().map(|entry| directory(entry, CustomizationType::Skill, "skills"));
        rules.chain(skills).chain(self.servers).collect()
    }
}

const INSTRUCTIONS: &str = ".instructions.md";

fn is_rule(name: &str, parent: &Path) -> bool {
    match name {
        "AGENTS.md" | "CLAUDE.md" => true,
        "copilot-instructions.md" => parent.ends_with(".github"),
        other => other.ends_with(INSTRUCTIONS),
    }
}

/// A skill is `skills/NAME/SKILL.md`, wherever `skills` is: `.claude`, `.agents`, `.github`, a plugin.
fn skills_directory<'a>(name: &str, parent: &'a Path) -> Option<&'a Path> {
    parent.parent().filter(|above| name == "SKILL.md" && above.ends_with("skills"))
}

/// The path from the working directory; for that itself, its name.
fn name_of(root: &Path, path: &Path) -> String {
    let short = path.strip_prefix(root).ok().filter(|short| !short.as_os_str().is_empty());
    short.unwrap_or_else(|| Path::new(root.file_name().unwrap_or(root.as_os_str()))).display().to_string()
}

fn rule(root: &Path, path: &Path, front_matter: &FrontMatter, always: bool) -> ChildCustomization {
    let uri = uri_of(path);
    let globs: Vec<String> =
        ["applyTo", "globs"].iter().flat_map(|key| front_matter.list(key)).flat_map(|list| split(list)).collect();
    ChildCustomization::Rule(RuleCustomization {
        id: format!("rule:{uri}"),
        uri,
        name: front_matter.text("name").unwrap_or_else(|| name_of(root, path)),
        icons: None,
        range: None,
        meta: None,
        enabled: None,
        description: front_matter.text("description"),
        always_apply: (always || !globs.is_empty()).then_some(true),
        globs: (!globs.is_empty()).then_some(globs),
    })
}

/// Globs on one line have commas between them, but not those inside of braces.
fn split(list: &str) -> Vec<String> {
    let mut depth = 0_usize;
    let parts = list.split(|char| {
        match char {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        char == ',' && depth == 0
    });
    parts.map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

fn skill(dir: &Path, path: &Path, front_matter: &FrontMatter) -> ChildCustomization {
    let uri = uri_of(path);
    let name = || dir.file_name().unwrap_or(dir.as_os_str()).to_string_lossy().into_owned();
    ChildCustomization::Skill(SkillCustomization {
        id: format!("skill:{uri}"),
        uri,
        name: front_matter.text("name").unwrap_or_else(name),
        icons: None,
        range: None,
        meta: None,
        enabled: None,
        description: front_matter.text("description"),
        disable_model_invocation: front_matter.is("disable-model-invocation").then_some(true),
        disable_user_invocation: (front_matter.text("user-invocable").as_deref() == Some("false")).then_some(true),
    })
}

/// Only names come out of a manifest: commands and environments may hold secrets.
fn servers(uri: &str, manifest: &str) -> Vec<Customization> {
    let manifest: Value = match serde_json::from_str(manifest) {
        Ok(manifest) => manifest,
        Err(error) => {
            tracing::warn!(uri, %error, "an .mcp.json is ignored, because it is not valid JSON");
            return Vec::new();
        }
    };
    let servers = manifest.get("mcpServers").and_then(Value::as_object).into_iter().flatten();
    let mut names: Vec<_> = servers.map(|(name, _)| name).collect();
    names.sort_unstable();
    let server = |name: &String| {
        Customization::McpServer(Box::new(McpServerCustomization {
            id: format!("mcp:{uri}#{name}"),
            uri: uri.to_owned(),
            name: name.clone(),
            icons: None,
            range: None,
            meta: None,
            enablement: None,
            state: McpServerState::Stopped(McpServerStoppedState {}),
            channel: None,
            mcp_app: None,
        }))
    };
    names.into_iter().map(server).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_are_split_at_commas_outside_of_braces() {
        assert_eq!(split("**/*.{ts,tsx}, src/**,"), ["**/*.{ts,tsx}", "src/**"]);
    }
}
