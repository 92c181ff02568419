//! One copy of each long body for all who read it at the same time. The state, the agents and all clients read a new entry at
//! about the same time, and a long one does not stay in [`RecentEntries`](super::recent::RecentEntries) for long.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;

use super::super::Seq;
use crate::lock::lock;

/// The long bodies that somebody holds, by the seqs of their entries. Cloning shares it.
#[derive(Debug, Clone, Default)]
pub(super) struct SharedBodies(Arc<Mutex<HashMap<Seq, Weak<Bytes>>>>);

impl SharedBodies {
    /// The body of an entry, shared if somebody holds it, else read with `read`. Long bodies are read one at a time, so that two
    /// readers do not both read the same one.
    pub(super) fn get_or_read<E>(&self, seq: Seq, read: impl FnOnce() -> Result<Bytes, E>) -> Result<Bytes, E> {
        let mut held = lock(&self.0);
        if let Some(body) = held.get(&seq).and_then(Weak::upgrade) {
            return Ok(Bytes::from_owner(BodyShare(body)));
        }
        let body = read()?;
        Ok(insert(&mut held, seq, body))
    }

    /// Shares a body with those who read it later.
    pub(super) fn share(&self, seq: Seq, body: Bytes) -> Bytes {
        insert(&mut lock(&self.0), seq, body)
    }
}

fn insert(held: &mut HashMap<Seq, Weak<Bytes>>, seq: Seq, body: Bytes) -> Bytes {
    let body = Arc::new(body);
    held.retain(|_, body| body.strong_count() > 0);
    held.insert(seq, Arc::downgrade(&body));
    Bytes::from_owner(BodyShare(body))
}

/// A share of a body.
struct BodyShare(Arc<Bytes>);

impl AsRef<[u8]> for BodyShare {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn a_body_is_read_once_while_somebody_holds_it_and_anew_when_nobody_does() {
        let bodies = SharedBodies::default();
        let read =
            |text: &'static str| bodies.get_or_read(1, || Ok::<_, Infallible>(Bytes::from_static(text.as_bytes())));
        let first = read("first").unwrap_or_default();
        let second = read("second").unwrap_or_default();
        assert_eq!((&*first, first.as_ptr()), (&b"first"[..], second.as_ptr()));
        drop((first, second));
        assert_eq!(read("third"), Ok(Bytes::from_static(b"third")));
    }

    #[test]
    fn a_body_that_was_just_written_is_not_read() {
        let bodies = SharedBodies::default();
        let written = bodies.share(1, Bytes::from_static(b"written"));
        let read = bodies.get_or_read(1, || Err("it was read"));
        assert_eq!(read.as_deref(), Ok(&*written));
    }
}
