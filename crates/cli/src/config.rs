//! `breakbulk config`: each setting, what it is, and where that comes from.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value as Json;

use crate::args::ConfigArgs;
use crate::failure::Error;
use crate::settings::{Configuration, Origin, SettingError, Settings, Shown, all, check, check_files};

/// A longer value pushes its neighbour aside instead of making every line long.
const WIDEST_VALUE: usize = 34;

/// Prints all settings.
pub(crate) fn run(args: ConfigArgs, output: impl Write) -> Result<(), Error> {
    let configuration = Configuration::load(args.settings)?;
    for variable in &configuration.strangers {
        // A platform may set such a variable, so it is no mistake. A misspelt one is worth a word.
        let _ = writeln!(io::stderr(), "breakbulk: {variable} is no setting of ours; left out");
    }
    let report = Report::new(&configuration)?;
    if args.json {
        print_json(report.0.iter().map(Row::json), output)?;
    } else {
        report.print_table(output)?;
    }
    let settings = Settings::read(&configuration.layers)?;
    check_files(&settings, &configuration.layers)?;
    Ok(check(settings, &configuration.layers)?)
}

/// What each setting is, ready to print.
#[derive(Debug)]
struct Report(Vec<Row>);

#[derive(Debug)]
struct Row {
    key: &'static str,
    value: Option<Shown>,
    /// What it means that there is no value.
    unset: &'static str,
    origin: Origin,
}

impl Report {
    fn new(configuration: &Configuration) -> Result<Self, SettingError> {
        let layers = &configuration.layers;
        let path = configuration.file.as_ref().map(|file| file.display().to_string());
        let value = path.map(|path| Shown { json: Json::from(&*path), lines: vec![path] });
        let mut rows = vec![Row { key: "config", value, unset: "none", origin: configuration.file_origin.clone() }];
        for setting in all() {
            let value = layers.show(setting)?;
            rows.push(Row { key: setting.key, value, unset: setting.default, origin: layers.origin(setting.key) });
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
        for (key, lines, from) in &cells {
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
        Object { key: self.key, value: self.value.as_ref().map(|shown| shown.json.clone()), from }
    }
}

/// A row for programs.
#[derive(Serialize)]
struct Object {
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
