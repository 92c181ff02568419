//! Chooses what provides the links of an address, by its scheme, and makes those of peers that come in private.

use std::sync::Arc;

use breakbulk::external::{Acceptor, Connector, Scheme};
use breakbulk::link::unix;
use breakbulk::private::PrivateAcceptor;
use breakbulk::{Route, Transport};
use breakbulk_nostr::{NostrAcceptor, NostrAddress, NostrConnector, NostrError};
use breakbulk_webpubsub::link::{WebPubSubAcceptor, WebPubSubAddress, WebPubSubConnector};

use crate::failure::Error;
use crate::open;
use crate::pairing::{self, Pairing};
use crate::settings::LinkSettings;

/// Returns the connector that dials the address of a route, if a crate other than the network library provides its
/// links.
pub(crate) fn connector(route: &Route, link: &LinkSettings) -> Result<Option<Arc<dyn Connector>>, Error> {
    let Transport::External { scheme, target, options } = &route.address.transport else { return Ok(None) };
    match scheme.name {
        "nostr" => {
            let address = NostrAddress::parse(target, options).map_err(|error| nostr_error(&error.into()))?;
            let connector = NostrConnector::new(address, open::socket_dialer(route, link));
            Ok(Some(Arc::new(connector.map_err(|error| nostr_error(&error))?)))
        }
        "webpubsub" => {
            let connector = WebPubSubConnector::new(web_pub_sub(route)?, open::socket_dialer(route, link));
            Ok(Some(Arc::new(connector.map_err(Error::Random)?)))
        }
        _ => Err(unknown(scheme)),
    }
}

/// An acceptor, and what a person has to know to connect.
pub(crate) type Accepting = (Box<dyn Acceptor>, Vec<String>, Option<Pairing>);

/// Returns the acceptor of peers at the address of a route. Their links are private if the address says so.
pub(crate) async fn acceptor(route: &Route, link: &LinkSettings) -> Result<Accepting, Error> {
    // First, because a key file that cannot be used is reported before anything is opened.
    let key = pairing::host_key(route)?;
    let (peers, notes) = open_acceptor(route, link).await?;
    Ok(match key {
        None => (peers, notes, None),
        Some((key, pairing)) => {
            let private = PrivateAcceptor::new(peers, key, route.max_frame_bytes());
            (Box::new(private), notes, Some(pairing))
        }
    })
}

async fn open_acceptor(route: &Route, link: &LinkSettings) -> Result<(Box<dyn Acceptor>, Vec<String>), Error> {
    let (scheme, target, options) = match &route.address.transport {
        Transport::External { scheme, target, options } => (scheme, target, options),
        Transport::Unix(path) => {
            let cannot = |error| Error::Listen(format!("cannot listen on {}: {error}", path.display()));
            let listener = unix::UnixSocketListener::bind(path).await.map_err(cannot)?;
            let peers = unix::Peers::new(listener, route.address.cap.unwrap_or(u64::MAX), route.max_frame_bytes());
            return Ok((Box::new(peers), vec![format!("listening on unix:{}", path.display())]));
        }
        _ => return Err(Error::Bug),
    };
    match scheme.name {
        "nostr" => {
            let address = NostrAddress::parse(target, options).map_err(|error| nostr_error(&error.into()))?;
            let cap = route.address.effective_cap().unwrap_or(u64::MAX);
            let opened = NostrAcceptor::new(address, open::socket_dialer(route, link), cap).await;
            let (acceptor, notes) = opened.map_err(|error| nostr_error(&error))?;
            Ok((Box::new(acceptor), notes))
        }
        "webpubsub" => {
            let address = web_pub_sub(route)?;
            let note = format!("waiting for clients in the hub {} as {}", address.hub(), address.host());
            let (dialer, cap) = (open::socket_dialer(route, link), route.address.effective_cap());
            let acceptor = WebPubSubAcceptor::start(address, &dialer, cap.unwrap_or(u64::MAX)).await;
            Ok((Box::new(acceptor.map_err(Error::Dial)?), vec![note]))
        }
        _ => Err(unknown(scheme)),
    }
}

fn nostr_error(error: &NostrError) -> Error {
    Error::Arguments(error.to_string())
}

fn web_pub_sub(route: &Route) -> Result<WebPubSubAddress, Error> {
    let address = WebPubSubAddress::try_from(&route.address);
    address.map_err(|error| Error::Arguments(format!("{}: {error}", route.address)))
}

/// A scheme that this program was built without.
fn unknown(scheme: &Scheme) -> Error {
    Error::Arguments(format!("links of the scheme {:?} are not available yet", scheme.name))
}
