//! The follower: takes what happens in chats to their tasks, in the order of the log.

use std::sync::Arc;
use std::time::Duration;

use tracing::{error, warn};

use super::Shared;
use super::roster::Roster;
use super::told::{Glance, glance};
use crate::host::workshop::PASSING;
use crate::log::{Channels, DamagedRecord, Entry, ReadError, Seq};

/// What is taken from the log at once, in bytes.
const PAGE: usize = 1 << 20;

/// How long to wait before a log that cannot be read is asked again.
const PAUSE: Duration = Duration::from_millis(200);

/// Follows the log from `after` on until it is closed.
pub(super) async fn follow(shared: Arc<Shared>, after: Seq) {
    let mut tail = shared.desk.log().tail(after, Channels::Except(PASSING));
    loop {
        match tail.next(PAGE).await {
            Ok(page) => page.into_iter().for_each(|entry| take(&shared, entry)),
            Err(ReadError::Closed) => return,
            Err(ReadError::Damaged(DamagedRecord::Entry { seq })) => {
                error!(seq, "an entry is damaged; if it was for an agent, that does not hear of it");
                tail.seek(seq);
            }
            Err(ReadError::Trimmed { first }) => {
                warn!(first, "the log dropped entries before agents were told of them");
                tail.seek(first.saturating_sub(1));
            }
            Err(error) => {
                warn!(%error, "the log cannot be followed now");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

fn take(shared: &Arc<Shared>, entry: Entry) {
    match glance(&entry) {
        Glance::Turn | Glance::Deed => Roster::tell(shared, entry),
        Glance::Edge => shared.roster.renew(&entry.channel),
        Glance::Other => {}
    }
}
