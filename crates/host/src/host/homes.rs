//! Which session a channel belongs to.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::lock::lock;
use crate::log::{Log, ReadError};

/// So many channels are known by heart. With more, all are forgotten and found again.
const MAX_KNOWN: usize = 4096;

/// The sessions of channels, as far as they were asked for: the log knows, but only as a whole list. A channel never
/// changes its session.
#[derive(Debug, Default)]
pub(super) struct Homes(Mutex<HashMap<Arc<str>, Arc<str>>>);

impl Homes {
    /// The session of a channel, if it has one.
    pub(super) async fn find(&self, log: &dyn Log, channel: &str) -> Result<Option<Arc<str>>, ReadError> {
        let known = || lock(&self.0);
        if let Some(session) = known().get(channel) {
            return Ok(Some(Arc::clone(session)));
        }
        let all = log.channels(None).await?;
        let Some(info) = all.into_iter().find(|info| *info.channel == *channel) else { return Ok(None) };
        if let Some(session) = &info.session {
            let mut known = known();
            if known.len() >= MAX_KNOWN {
                known.clear();
            }
            known.insert(info.channel, Arc::clone(session));
        }
        Ok(info.session)
    }
}
