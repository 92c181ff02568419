//! `breakbulk send`: one request, and its answer.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use serde::de::IgnoredAny;

use crate::args::RequestArgs;
use crate::failure::{Error, Failure};
use crate::runtime;
use crate::seam::Address;
use crate::settings::{Layers, LinkSettings, Settings, peer};

/// What `send` does.
#[derive(Debug)]
#[expect(dead_code, reason = "send reads all of it when it is built")]
pub(crate) struct SendSettings {
    pub(crate) address: Address,
    /// The request, whole; its id is [`ID`].
    pub(crate) request: Bytes,
    /// How long to wait for the answer.
    pub(crate) timeout: Option<Duration>,
    /// Whether the answer is printed whole.
    pub(crate) raw: bool,
    pub(crate) link: LinkSettings,
}

/// The id of the one request.
const ID: u32 = 1;

impl SendSettings {
    pub(crate) fn prove(args: RequestArgs, settings: Settings, layers: &Layers) -> Result<Self, Error> {
        let address = peer(&args.url, &settings)?;
        let link = LinkSettings::prove(settings, layers)?;
        let params = params(args.params, args.params_file, io::stdin())?;
        let request = request(&args.method, params.as_deref());
        let timeout = args.timeout.map(|timeout| timeout.0);
        Ok(Self { address, request, timeout, raw: args.raw, link })
    }
}

/// Sends the request, and prints its answer.
pub(crate) fn run(settings: SendSettings) -> Result<(), Error> {
    runtime::run(send(settings))
}

/// The one place where the library is called.
async fn send(settings: SendSettings) -> Result<(), Error> {
    tracing::debug!(address = %settings.address, bytes = settings.request.len(), "send");
    Err(Error::NotBuilt("send"))
}

/// The request's text. `params` stay as they are, byte for byte.
fn request(method: &str, params: Option<&str>) -> Bytes {
    let method = serde_json::Value::from(method);
    let head = format!(r#"{{"jsonrpc":"2.0","id":{ID},"method":{method}"#);
    let (before, params) = params.map_or(("", ""), |params| (r#","params":"#, params));
    [&head, before, params, "}"].concat().into()
}

/// The params, proven to be what JSON-RPC has there.
fn params(inline: Option<String>, file: Option<PathBuf>, input: impl Read) -> Result<Option<String>, Error> {
    let (text, name) = match (inline, file) {
        (Some(text), _) => (text.into_bytes(), "--params".to_owned()),
        (None, Some(path)) if path == Path::new("-") => (read(input).map_err(Error::Reading)?, "standard input".into()),
        (None, Some(path)) => {
            let text = std::fs::read(&path).map_err(|error| Error::File(path.clone(), error))?;
            (text, path.display().to_string())
        }
        (None, None) => return Ok(None),
    };
    let refused =
        |why: String, rule| Error::Input(Failure { line: None, text: format!("params in {name}: {why}"), rule });
    let text = String::from_utf8(text).map_err(|error| {
        refused(format!("not UTF-8 at byte {}", error.utf8_error().valid_up_to()), "params-not-utf8")
    })?;
    serde_json::from_str::<IgnoredAny>(&text).map_err(|error| refused(error.to_string(), "params-not-json"))?;
    if text.trim_start().starts_with(['{', '[']) {
        Ok(Some(text.trim().to_owned()))
    } else {
        Err(refused("neither an object nor an array".into(), "params-not-structured"))
    }
}

fn read(mut input: impl Read) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    input.read_to_end(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_keeps_its_params_byte_for_byte() {
        assert_eq!(&request("ping", None)[..], br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#);
        let params = params(None, Some("-".into()), &b"\n { \"n\" : 1.0e2 }\n"[..]).unwrap();
        let request = request("a\"b", params.as_deref());
        assert_eq!(&request[..], br#"{"jsonrpc":"2.0","id":1,"method":"a\"b","params":{ "n" : 1.0e2 }}"#);
    }

    #[test]
    fn params_that_are_no_params_are_refused() {
        for (text, want) in [
            (&b"{"[..], "params in standard input: EOF while parsing an object at line 1 column 1 [params-not-json]"),
            (b"{} {}", "params in standard input: trailing characters at line 1 column 4 [params-not-json]"),
            (b"{\"a\":\"\xff\"}", "params in standard input: not UTF-8 at byte 6 [params-not-utf8]"),
            (b" 12", "params in standard input: neither an object nor an array [params-not-structured]"),
        ] {
            let error = params(None, Some("-".into()), text).unwrap_err();
            assert_eq!((error.to_string().as_str(), error.status()), (want, 2));
        }
        assert_eq!(params(None, Some("/nowhere/at/all".into()), &b""[..]).unwrap_err().status(), 1);
    }
}
