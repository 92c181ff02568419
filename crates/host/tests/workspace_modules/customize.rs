//! Customizations and completions of real directories.

use std::os::unix::fs::symlink;
use std::path::Path;

use ahp::reducers::apply_action_to_session;
use ahp_types::actions::{SessionCustomizationsChangedAction, StateAction};
use ahp_types::commands::{CompletionItemKind, CompletionsParams};
use ahp_types::errors::json_rpc_error_codes;
use ahp_types::state::{
    ChildCustomization, Customization, CustomizationEnablement, CustomizationLoadState, MessageAttachment, SessionState,
};
use breakbulk_host::test_support::customize::{CompleteConfig, CustomizeConfig, complete, find, keep_enablement};
use breakbulk_host::test_support::files::uri_of;
use tempfile::TempDir;

fn workspace(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        write(dir.path(), name, text);
    }
    dir
}

fn write(dir: &Path, name: &str, text: &str) {
    let path = dir.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

async fn found(dir: &TempDir) -> Vec<Customization> {
    find(vec![dir.path().to_owned()], CustomizeConfig::default()).await
}

/// `directory/child` of each, and the names of servers.
fn names(customizations: &[Customization]) -> Vec<String> {
    let of = |customization: &Customization| match customization {
        Customization::Directory(directory) => {
            let child = |child: &ChildCustomization| match child {
                ChildCustomization::Rule(rule) => format!("rule {}", rule.name),
                ChildCustomization::Skill(skill) => format!("skill {}", skill.name),
                other => panic!("{other:?}"),
            };
            directory.children.as_ref().unwrap().iter().map(child).collect()
        }
        Customization::McpServer(server) => vec![format!("server {}", server.name)],
        other => panic!("{other:?}"),
    };
    customizations.iter().flat_map(of).collect()
}

#[tokio::test]
async fn each_kind_is_found_where_its_tools_put_it() {
    let dir = workspace(&[
        ("AGENTS.md", "# Rules\n"),
        ("CLAUDE.md", "# Rules\n"),
        (".github/copilot-instructions.md", "x"),
        (".github/instructions/ts.instructions.md", "---\ndescription: TS\napplyTo: '**/*.{ts,tsx},src/**'\n---\n"),
        ("crates/a/AGENTS.md", "x"),
        (".claude/skills/review/SKILL.md", "---\nname: Review\ndescription: |\n  How to\n  review\n---\nbody"),
        (".agents/skills/plain/SKILL.md", "no front matter"),
        (".mcp.json", r#"{"mcpServers":{"b":{"env":{"KEY":"s3cret"}},"a":{}}}"#),
        ("copilot-instructions.md", "not here"),
        ("SKILL.md", "nor here"),
        ("crates/a/.mcp.json", r#"{"mcpServers":{"c":{}}}"#),
    ]);
    let found = found(&dir).await;
    assert_eq!(
        names(&found),
        [
            "rule AGENTS.md",
            "rule CLAUDE.md",
            "rule .github/copilot-instructions.md",
            "rule .github/instructions/ts.instructions.md",
            "rule crates/a/AGENTS.md",
            "skill plain",
            "skill Review",
            "server a",
            "server b",
        ]
    );
    let json = serde_json::to_string(&found).unwrap();
    assert!(!json.contains("s3cret"));
    assert!(json.contains(r#""globs":["**/*.{ts,tsx}","src/**"]"#), "{json}");
    assert!(json.contains(r#""description":"How to\nreview""#), "{json}");
    assert!(json.contains(&uri_of(&dir.path().canonicalize().unwrap().join("AGENTS.md"))));
}

#[tokio::test]
async fn the_walk_stays_inside_and_out_of_what_others_wrote() {
    let outside = workspace(&[("AGENTS.md", "x"), ("skills/out/SKILL.md", "x")]);
    let dir = workspace(&[
        ("real/AGENTS.md", "x"),
        (".git/AGENTS.md", "x"),
        ("node_modules/a/AGENTS.md", "x"),
        ("build/CACHEDIR.TAG", "x"),
        ("build/AGENTS.md", "x"),
        (".agents/skills/one/SKILL.md", "x"),
    ]);
    symlink(outside.path().join("AGENTS.md"), dir.path().join("AGENTS.md")).unwrap();
    symlink(outside.path().join("skills"), dir.path().join("skills")).unwrap();
    symlink("real/AGENTS.md", dir.path().join("CLAUDE.md")).unwrap();
    symlink("..", dir.path().join("real/loop")).unwrap();
    symlink("/dev/zero", dir.path().join("x.instructions.md")).unwrap();
    assert_eq!(names(&found(&dir).await), ["rule CLAUDE.md", "rule real/AGENTS.md", "skill one"]);
}

#[tokio::test]
async fn a_limit_shows_as_a_warning() {
    let dir = workspace(&[("a/AGENTS.md", "x"), ("b/AGENTS.md", "x"), ("c/d/e/AGENTS.md", "x")]);
    let limits = [
        CustomizeConfig { max_found: 2, ..CustomizeConfig::default() },
        CustomizeConfig { max_depth: 2, ..CustomizeConfig::default() },
        CustomizeConfig { max_entries: 5, ..CustomizeConfig::default() },
    ];
    for config in limits {
        let found = find(vec![dir.path().to_owned()], config.clone()).await;
        assert_eq!(names(&found), ["rule a/AGENTS.md", "rule b/AGENTS.md"], "{config:?}");
        let Customization::Directory(first) = &found[0] else { panic!("{found:?}") };
        assert!(matches!(first.load, Some(CustomizationLoadState::Degraded(_))), "{config:?}");
    }
}

#[tokio::test]
async fn what_is_no_manifest_brings_no_servers() {
    for text in ["", "[]", "{", r#"{"mcpServers":[1]}"#, &"[".repeat(100_000), &" ".repeat(2 << 20)] {
        assert_eq!(found(&workspace(&[(".mcp.json", text)])).await, []);
    }
}

#[tokio::test]
async fn a_list_of_several_megabytes_goes_through_whole() {
    let dir = tempfile::tempdir().unwrap();
    let text = "Use this when somebody asks for it. ".repeat(50);
    for number in 0..2500 {
        let front = format!("---\nname: skill {number}\ndescription: {text}\n---\n");
        write(dir.path(), &format!(".claude/skills/s{number:05}/SKILL.md"), &front);
    }
    let customizations = found(&dir).await;
    assert_eq!(names(&customizations).len(), 2500);
    let action = StateAction::SessionCustomizationsChanged(SessionCustomizationsChangedAction { customizations });
    let json = serde_json::to_string(&action).unwrap();
    assert!(json.len() > 4_000_000, "{}", json.len());
    let again: StateAction = serde_json::from_str(&json).unwrap();
    assert_eq!(action, again);
    let mut state = session();
    apply_action_to_session(&mut state, &again);
    let StateAction::SessionCustomizationsChanged(action) = action else { panic!() };
    assert_eq!(state.customizations, Some(action.customizations));
}

fn session() -> SessionState {
    let state = serde_json::json!({
        "provider": "demo", "title": "t", "status": 1, "lifecycle": "ready", "activeClients": [], "chats": [],
    });
    serde_json::from_value(state).unwrap()
}

#[tokio::test]
async fn what_was_switched_off_stays_off_when_it_is_found_again() {
    let dir = workspace(&[("AGENTS.md", "x"), ("CLAUDE.md", "x"), (".mcp.json", r#"{"mcpServers":{"a":{}}}"#)]);
    let mut before = found(&dir).await;
    let off = vec![CustomizationEnablement::Session { enabled: false }];
    for customization in &mut before {
        match customization {
            Customization::Directory(directory) => {
                directory.enabled = false;
                let Some(ChildCustomization::Rule(rule)) = directory.children.as_mut().unwrap().first_mut() else {
                    panic!()
                };
                rule.enabled = Some(false);
            }
            Customization::McpServer(server) => server.enablement = Some(off.clone()),
            other => panic!("{other:?}"),
        }
    }
    let mut after = found(&dir).await;
    assert_ne!(after, before);
    keep_enablement(&mut after, &before);
    assert_eq!(after, before);
}

async fn completed(dirs: &[&TempDir], text: &str, config: CompleteConfig) -> Vec<String> {
    let params = CompletionsParams {
        channel: "ahp-chat:/1".into(),
        meta: None,
        kind: CompletionItemKind::UserMessage,
        text: text.into(),
        offset: i64::try_from(text.encode_utf16().count()).unwrap(),
    };
    let dirs = dirs.iter().map(|dir| dir.path().to_owned()).collect();
    let result = complete(dirs, params, config).await.unwrap();
    result.items.into_iter().map(|item| item.insert_text).collect()
}

#[tokio::test]
async fn files_are_completed_by_path_or_name_near_ones_first() {
    let dir = workspace(&[
        ("main.rs", ""),
        ("src/Main.rs", ""),
        ("src/deep/manual.md", ""),
        ("src/other.rs", ""),
        (".hidden/main.rs", ""),
        (".mainrc", ""),
        ("node_modules/main.js", ""),
    ]);
    let outside = workspace(&[("main.txt", "")]);
    symlink(outside.path(), dir.path().join("main-link")).unwrap();
    let ask = async |text: &str| completed(&[&dir], text, CompleteConfig::default()).await;
    assert_eq!(ask("see @ma").await, ["@main.rs", "@.hidden/main.rs", "@src/Main.rs", "@src/deep/manual.md"]);
    assert_eq!(ask("see #src/M").await, ["#src/Main.rs"]);
    assert_eq!(ask("@src/").await, ["@src/Main.rs", "@src/deep/", "@src/other.rs", "@src/deep/manual.md"]);
    assert_eq!(ask("@.m").await, ["@.mainrc"]);
    for text in ["ma", "@../", "@/etc/pa", "@src/../../", "@main-link/", "@nothing", "mail@ma"] {
        assert_eq!(ask(text).await, [""; 0], "{text}");
    }
}

#[tokio::test]
async fn completions_are_bounded_and_name_the_file() {
    let (one, two) = (workspace(&[("a", "12345")]), tempfile::tempdir().unwrap());
    for number in 0..500 {
        write(two.path(), &format!("a{number}"), "");
    }
    let few = CompleteConfig { max_items: 10, ..CompleteConfig::default() };
    assert_eq!(completed(&[&one, &two], "@a", few.clone()).await.len(), 10);
    let params = |text: &str, offset| CompletionsParams {
        channel: "ahp-chat:/1".into(),
        meta: None,
        kind: CompletionItemKind::UserMessage,
        text: text.into(),
        offset,
    };
    let dirs = vec![one.path().to_owned()];
    let item = complete(dirs.clone(), params("𝄞 @a b", 5), few.clone()).await.unwrap().items.remove(0);
    assert_eq!((item.range_start, item.range_end), (Some(3), Some(5)));
    let MessageAttachment::Resource(file) = item.attachment else { panic!() };
    assert_eq!((file.uri, file.size_hint), (uri_of(&one.path().canonicalize().unwrap().join("a")), Some(5)));
    let error = complete(dirs, params("a", 9), few).await.unwrap_err();
    assert_eq!(error.code(), json_rpc_error_codes::INVALID_PARAMS);
}
