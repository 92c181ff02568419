//! All layers, read from the program's surroundings.

use std::path::PathBuf;

use super::error::SettingError;
use super::file::File;
use super::flags::{Scope, SettingsArgs};
use super::layers::{Environment, Layers, Origin};

/// The settings that hold here, and the file that some of them are from.
#[derive(Debug)]
pub(crate) struct Configuration {
    pub(crate) layers: Layers,
    /// The bridges that the file names, and the settings that hold for each.
    pub(crate) bridges: Vec<(String, Layers)>,
    pub(crate) file: Option<PathBuf>,
    /// Who named the file.
    pub(crate) file_origin: Origin,
    /// Where a host keeps its data if nobody says where.
    pub(crate) usual_data: Option<PathBuf>,
    /// Variables that look like ours and are not.
    pub(crate) strangers: Vec<String>,
}

impl Configuration {
    /// Reads the environment and the file, and puts what was typed before both.
    pub(crate) fn load<S: Scope>(args: SettingsArgs<S>) -> Result<Self, SettingError> {
        let environment = Environment::new(std::env::vars_os())?;
        let (file, file_origin) = File::find(args.config(), &environment)?.unzip();
        let strangers = environment.strangers().map(str::to_owned).collect();
        let path = file.as_ref().map(|file| file.path.clone());
        let (typed, file) = (args.typed(), file.unwrap_or_default());
        let of_bridge = |table| Layers::new(typed.clone(), &environment, file.of_bridge(table));
        let bridges = file.bridges.iter().map(|table| (table.name.clone(), of_bridge(table))).collect();
        let layers = Layers::new(typed, &environment, file);
        let usual_data = environment.usual_data();
        Ok(Self {
            layers,
            bridges,
            usual_data,
            file: path,
            file_origin: file_origin.unwrap_or(Origin::Default),
            strangers,
        })
    }
}
