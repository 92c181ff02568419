//! Error responses to the messages of one line or frame that is not valid. Only their ids are kept, and each response is made when its
//! turn comes: a response is ten times as long as a short request, and a batch may have a thousand requests.

use crate::error::Violation;
use crate::message::{Message, len_usize};
use crate::rpc;

/// Error responses to several requests, all for the same reason. For each, only the id and at most one byte more are
/// kept.
#[derive(Debug)]
pub(crate) struct ErrorResponses {
    violation: Violation,
    recipient: Recipient,
    /// Each id after its length. No id is longer than [`MAX_ID`](crate::salvage::MAX_ID).
    ids: Box<[u8]>,
    at: usize,
    left: usize,
}

/// Who receives the error responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recipient {
    /// The peer, which sent invalid requests.
    Peer,
    /// Our own callers, whose requests got invalid responses.
    Caller,
}

impl ErrorResponses {
    /// The responses to requests with these ids.
    pub(crate) fn new<'a>(
        recipient: Recipient,
        violation: Violation,
        requests: impl IntoIterator<Item = &'a [u8]>,
    ) -> Self {
        let (mut ids, mut left) = (Vec::new(), 0_usize);
        for id in requests {
            // Longer ones, and empty ones, are no ids of a request that can be answered.
            let Some(len) = id.len().checked_sub(1).and_then(|len| u8::try_from(len).ok()) else { continue };
            ids.push(len);
            ids.extend_from_slice(id);
            left = left.saturating_add(1);
        }
        Self { violation, recipient, ids: ids.into_boxed_slice(), at: 0, left }
    }

    /// How many are left.
    pub(crate) const fn len(&self) -> usize {
        self.left
    }
}

impl Iterator for ErrorResponses {
    type Item = Message;

    fn next(&mut self) -> Option<Message> {
        let len = len_usize(u64::from(*self.ids.get(self.at)?)).saturating_add(1);
        let start = self.at.saturating_add(1);
        let end = start.saturating_add(len);
        let id = self.ids.get(start..end)?;
        (self.at, self.left) = (end, self.left.saturating_sub(1));
        Some(match self.recipient {
            Recipient::Peer => rpc::refused(id, &self.violation),
            Recipient::Caller => rpc::receive_failed(id, &self.violation),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::salvage::MAX_ID;

    #[test]
    fn each_id_gets_its_response_in_order_however_long_it_is() {
        let ids = [b"1".to_vec(), vec![b'7'; 128], vec![b'8'; MAX_ID], b"\"x\"".to_vec()];
        for (recipient, code) in [(Recipient::Peer, "-32600"), (Recipient::Caller, "-32603")] {
            let requests = ids.iter().map(Vec::as_slice);
            let mut responses = ErrorResponses::new(recipient, Violation::MessageNotJsonRpc, requests);
            for (n, id) in ids.iter().enumerate() {
                assert_eq!(responses.len(), ids.len() - n);
                let response = String::from_utf8(responses.next().unwrap().to_bytes().to_vec()).unwrap();
                let id = std::str::from_utf8(id).unwrap();
                let front = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"#);
                assert!(response.starts_with(&front), "{response}");
            }
            assert!(responses.next().is_none() && responses.len() == 0);
        }
    }
}
