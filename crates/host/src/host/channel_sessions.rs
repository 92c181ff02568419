//! Which session a channel belongs to.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::lock::lock;
use crate::log::{Log, ReadError};

/// How many channels are cached. When there are more, the cache is emptied.
const MAX_CACHED: usize = 4096;

/// A cache of the sessions of channels: the log gives them only as a list of all channels. A channel never changes its
/// session.
#[derive(Debug, Default)]
pub(super) struct ChannelSessions(Mutex<HashMap<Arc<str>, Arc<str>>>);

impl ChannelSessions {
    /// The session of a channel, if it belongs to one.
    pub(super) async fn find(&self, log: &dyn Log, channel: &str) -> Result<Option<Arc<str>>, ReadError> {
        let cache = || lock(&self.0);
        if let Some(session) = cache().get(channel) {
            return Ok(Some(Arc::clone(session)));
        }
        let all = log.channels(None).await?;
        let Some(info) = all.into_iter().find(|info| *info.channel == *channel) else { return Ok(None) };
        if let Some(session) = &info.session {
            let mut cache = cache();
            if cache.len() >= MAX_CACHED {
                cache.clear();
            }
            cache.insert(info.channel, Arc::clone(session));
        }
        Ok(info.session)
    }
}
