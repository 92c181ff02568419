//! Reads the settings from flags, the environment and the configuration file.

use std::path::PathBuf;

use super::agents::AgentTable;
use super::error::SettingError;
use super::file::File;
use super::flags::{Scope, SettingsArgs};
use super::layers::{Environment, Layers, Origin};

/// The settings in effect, and the configuration file.
#[derive(Debug)]
pub(crate) struct Configuration {
    pub(crate) layers: Layers,
    /// The bridges that the file names, and the settings that hold for each.
    pub(crate) bridges: Vec<(String, Layers)>,
    /// The agents that the file describes.
    pub(crate) agents: Vec<AgentTable>,
    pub(crate) file: Option<PathBuf>,
    /// Who named the file.
    pub(crate) file_origin: Origin,
    /// The default data directory of a host.
    pub(crate) default_data: Option<PathBuf>,
    /// Variables that begin with our prefix and are no settings.
    pub(crate) unknown_variables: Vec<String>,
}

impl Configuration {
    /// Reads the environment and the file, and puts what was typed before both.
    pub(crate) fn load<S: Scope>(args: SettingsArgs<S>) -> Result<Self, SettingError> {
        let environment = Environment::new(std::env::vars_os())?;
        let (file, file_origin) = File::find(args.config(), &environment)?.unzip();
        let unknown_variables = environment.unknown_variables().map(str::to_owned).collect();
        let path = file.as_ref().map(|file| file.path.clone());
        let (typed, file) = (args.typed(), file.unwrap_or_default());
        let of_bridge = |table| Layers::new(typed.clone(), &environment, file.of_bridge(table));
        let bridges = file.bridges.iter().map(|table| (table.name.clone(), of_bridge(table))).collect();
        let agents = file.agents.clone();
        let layers = Layers::new(typed, &environment, file);
        let default_data = environment.default_data();
        Ok(Self {
            layers,
            bridges,
            agents,
            default_data,
            file: path,
            file_origin: file_origin.unwrap_or(Origin::Default),
            unknown_variables,
        })
    }
}
