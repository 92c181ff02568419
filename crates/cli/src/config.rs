//! `breakbulk config`: prints each setting, its value, and where the value comes from.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value as Json;

use crate::args::{ConfigArgs, Format};
use crate::bridge;
use crate::failure::Error;
use crate::settings::{Configuration, Layers, Origin, Setting, SettingError, Settings, Shown, all, check, check_files};

/// A longer value shifts the rest of its own line only.
const WIDEST_VALUE: usize = 34;

/// Prints all settings.
pub(crate) fn run(args: ConfigArgs, output: impl Write) -> Result<(), Error> {
    let configuration = Configuration::load(args.settings)?;
    for variable in &configuration.unknown_variables {
        // A platform may set such a variable, so it is no error; but it may be a misspelt setting.
        let _ = writeln!(io::stderr(), "breakbulk: {variable} is not a setting; ignored");
    }
    let report = Report::new(&configuration)?;
    if args.json || args.format == Format::Json {
        print_json(report.0.iter().map(Row::json), output)?;
    } else {
        report.print_table(output)?;
    }
    let settings = Settings::read(&configuration.layers)?;
    check_files(&settings, &configuration.layers)?;
    check(settings, &configuration.layers)?;
    bridge::prove_all(&configuration).map(drop)
}

/// What each setting is, ready to print.
#[derive(Debug)]
struct Report(Vec<Row>);

#[derive(Debug)]
struct Row {
    /// The bridge that it is about, if the file names several.
    bridge: Option<String>,
    key: &'static str,
    value: Option<Shown>,
    /// What is printed in place of a value that is not set.
    unset: &'static str,
    origin: Origin,
}

impl Report {
    fn new(configuration: &Configuration) -> Result<Self, SettingError> {
        let layers = &configuration.layers;
        let path = configuration.file.as_ref().map(|file| file.display().to_string());
        let value = path.map(|path| Shown { json: Json::from(&*path), lines: vec![path] });
        let origin = configuration.file_origin.clone();
        let mut rows = vec![Row { bridge: None, key: "config", value, unset: "none", origin }];
        let row = |bridge: Option<&String>, layers: &Layers, setting: &'static Setting| {
            let (value, origin) = (layers.show(setting)?, layers.origin(setting.key));
            Ok(Row { bridge: bridge.cloned(), key: setting.key, value, unset: setting.default, origin })
        };
        for setting in all() {
            rows.push(row(None, layers, setting)?);
        }
        // For each bridge, the settings that differ from the common ones.
        for (name, of_bridge) in &configuration.bridges {
            for setting in all().filter(|setting| of_bridge.origin(setting.key) != layers.origin(setting.key)) {
                rows.push(row(Some(name), of_bridge, setting)?);
            }
        }
        Ok(Self(rows))
    }

    /// Prints a table for people.
    fn print_table(&self, mut output: impl Write) -> Result<(), Error> {
        let cells: Vec<(&str, Vec<String>, String)> = self.0.iter().map(Row::cells).collect();
        let key_width = cells.iter().map(|(key, ..)| key.len()).max().unwrap_or(0);
        let widths = cells.iter().flat_map(|(_, lines, _)| lines).map(|line| line.chars().count());
        let value_width = widths.filter(|width| *width <= WIDEST_VALUE).max().unwrap_or(0);
        let mut line = |key: &str, value: &str, from: &str| {
            let text = format!("{key:key_width$}  {value:value_width$}  {from}");
            writeln!(output, "{}", text.trim_end()).map_err(Error::Output)
        };
        line("KEY", "VALUE", "FROM")?;
        let mut bridge = None;
        for ((key, lines, from), row) in cells.iter().zip(&self.0) {
            if row.bridge.as_ref() != bridge {
                bridge = row.bridge.as_ref();
                line("", "", "")?;
                line("[[bridge]]", bridge.map_or("", String::as_str), "")?;
            }
            let mut lines = lines.iter();
            line(key, lines.next().map_or("", String::as_str), from)?;
            for more in lines {
                line("", more, "")?;
            }
        }
        output.flush().map_err(Error::Output)
    }
}

impl Row {
    fn cells(&self) -> (&'static str, Vec<String>, String) {
        let lines = match &self.value {
            Some(shown) => shown.lines.clone(),
            None => vec![format!("({})", self.unset)],
        };
        // The first row has the file's whole path.
        let from = match &self.origin {
            Origin::File { path, line } => {
                format!("file {}:{line}", path.file_name().unwrap_or(path.as_os_str()).display())
            }
            origin => origin.to_string(),
        };
        (self.key, lines, from)
    }

    fn json(&self) -> impl Serialize {
        let from = match &self.origin {
            Origin::Flag(flag) => From { layer: "flag", name: Some(flag.clone()), line: None },
            Origin::Argument(name) => From { layer: "argument", name: Some((*name).to_owned()), line: None },
            Origin::Environment(variable) => From { layer: "environment", name: Some(variable.clone()), line: None },
            Origin::File { path, line } => {
                From { layer: "file", name: Some(path.display().to_string()), line: Some(*line) }
            }
            Origin::Default => From { layer: "default", name: None, line: None },
        };
        SettingObject {
            bridge: self.bridge.clone(),
            key: self.key,
            value: self.value.as_ref().map(|shown| shown.json.clone()),
            from,
        }
    }
}

/// A row for programs.
#[derive(Serialize)]
struct SettingObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    bridge: Option<String>,
    key: &'static str,
    value: Option<Json>,
    from: From,
}

/// Where its value comes from.
#[derive(Serialize)]
struct From {
    layer: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
}

/// Prints a JSON array, one object a line, so that people can read it too.
pub(crate) fn print_json(objects: impl Iterator<Item: Serialize>, mut output: impl Write) -> Result<(), Error> {
    let mut before = "[\n  ";
    for object in objects {
        let text = serde_json::to_string(&object).map_err(|error| Error::Output(error.into()))?;
        write!(output, "{before}{text}").map_err(Error::Output)?;
        before = ",\n  ";
    }
    writeln!(output, "\n]").and_then(|()| output.flush()).map_err(Error::Output)
}
