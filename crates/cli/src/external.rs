//! Chooses the crate that provides the links of an address, by its scheme.

use std::sync::Arc;

use breakbulk::external::{Acceptor, Connector, Scheme};
use breakbulk::{Route, Transport};

use crate::failure::Error;
use crate::settings::LinkSettings;

/// What dials the address of a route, if a crate other than the network library's provides its links.
pub(crate) fn connector(route: &Route, _link: &LinkSettings) -> Result<Option<Arc<dyn Connector>>, Error> {
    let Transport::External { scheme, .. } = &route.address.transport else { return Ok(None) };
    Err(unknown(scheme))
}

/// What accepts peers at the address of a route, and what a person has to know to connect.
pub(crate) async fn acceptor(route: &Route, _link: &LinkSettings) -> Result<(Box<dyn Acceptor>, Vec<String>), Error> {
    match &route.address.transport {
        Transport::External { scheme, .. } => Err(unknown(scheme)),
        _ => Err(Error::Bug),
    }
}

/// A scheme that this program was built without.
fn unknown(scheme: &Scheme) -> Error {
    Error::Arguments(format!("links of the scheme {:?} are not available yet", scheme.name))
}
