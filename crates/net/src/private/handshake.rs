//! The handshake with which a private link begins: two frames of Noise, and an empty sealed one.
//!
//! ```text
//!  client ── marker, psk e es ──▶ host     only who has the pairing code can make it
//!  client ◀─ marker, e ee ─────── host     only who has the host's key can make it
//!  client ── sealed, empty ─────▶ host     only who made the first frame can make it
//! ```
//!
//! Each frame of Noise has a [`FrameContent`] in it, as one byte: if the link carries bytes at both ends, sealed frames are bytes.
//!
//! The host opens a link only after the third frame: the first one could be a repeated one.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use breakbulk_proto::{CloseReason, Message, Meta, Tag, Transmit};
use bytes::Bytes;
use futures_core::Stream;
use futures_sink::Sink;
use snow::{Builder, HandshakeState};
use tokio::time::timeout;

use super::error::{PrivateError, REFUSED};
use super::key::{HostKey, PairingCode};
use super::link::PrivateLink;
use super::seal::{Coding, Opened, Session};
use crate::link::{Arrival, BoxLink, FrameContent, Intake, Link, LinkError};

/// Client to host without a key of its own, host with a known key, and a secret that both have.
const PATTERN: &str = "Noise_NKpsk0_25519_AESGCM_SHA256";
/// Begins both frames of Noise, with the version. No message in any dialect begins like this, so who knows nothing of it can be told.
const MARKER: &str = "breakbulk-private-1 ";
/// More than a frame of the handshake has. Nothing longer is read from somebody who has proven nothing.
const MAX_HANDSHAKE_FRAME: u64 = 512;
/// How long the handshake may take.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the other side has to take the close that says why the handshake failed.
const CLOSE_TIME: Duration = Duration::from_secs(1);

/// Makes a link private, from the side of the client. Frames of at most `max_frame_bytes` are accepted.
///
/// # Errors
/// The other side is not the host of the pairing code, does not answer, or refuses.
pub async fn connect(link: BoxLink, code: &PairingCode, max_frame_bytes: u64) -> Result<BoxLink, PrivateError> {
    let noise = client(code).map_err(PrivateError::Noise)?;
    open(link, Side::Client, noise, max_frame_bytes).await
}

/// Makes a link private, from the side of the host. Frames of at most `max_frame_bytes` are accepted.
///
/// # Errors
/// The other side has another pairing code or none, does not go on with the handshake, or ends it.
pub async fn accept(link: BoxLink, key: &HostKey, max_frame_bytes: u64) -> Result<BoxLink, PrivateError> {
    let noise = host(key).map_err(PrivateError::Noise)?;
    open(link, Side::Host, noise, max_frame_bytes).await
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Client,
    Host,
}

async fn open(
    mut link: BoxLink,
    side: Side,
    noise: HandshakeState,
    max_frame_bytes: u64,
) -> Result<BoxLink, PrivateError> {
    limit(&mut link, MAX_HANDSHAKE_FRAME);
    let handshake = async {
        match side {
            Side::Client => greet(&mut link, noise).await,
            Side::Host => welcome(&mut link, noise).await,
        }
    };
    let done = timeout(HANDSHAKE_TIMEOUT, handshake).await;
    match done.unwrap_or(Err(PrivateError::HandshakeTimedOut(HANDSHAKE_TIMEOUT))) {
        Ok(session) => {
            limit(&mut link, session.coding().sealed_len(max_frame_bytes));
            Ok(Box::new(PrivateLink::new(link, session)))
        }
        Err(error) => {
            if error.is_refusal() {
                // It is told if it listens.
                let _ = timeout(CLOSE_TIME, refuse(&mut link, &error)).await;
            }
            Err(error)
        }
    }
}

fn limit(link: &mut BoxLink, max_frame_bytes: u64) {
    if let Some(memory) = link.receive_memory() {
        memory.set_intake(Intake { max_frame_bytes, account: None });
    }
}

fn client(code: &PairingCode) -> Result<HandshakeState, snow::Error> {
    let builder = Builder::new(PATTERN.parse()?).prologue(MARKER.as_bytes())?;
    builder.psk(0, &code.secret)?.remote_public_key(&code.public)?.build_initiator()
}

fn host(key: &HostKey) -> Result<HandshakeState, snow::Error> {
    let builder = Builder::new(PATTERN.parse()?).prologue(MARKER.as_bytes())?;
    builder.psk(0, &key.secret)?.local_private_key(&key.private)?.build_responder()
}

async fn greet(link: &mut BoxLink, mut noise: HandshakeState) -> Result<Session, PrivateError> {
    say(link, &mut noise).await?;
    let coding = hear(link, &mut noise, PrivateError::WrongHostKey).await?;
    let mut session = Session::new(noise.into_transport_mode().map_err(PrivateError::Noise)?, coding);
    let proof = session.seal(&Message::default()).map_err(PrivateError::Noise)?;
    send_frame(link, proof, coding).await?;
    Ok(session)
}

async fn welcome(link: &mut BoxLink, mut noise: HandshakeState) -> Result<Session, PrivateError> {
    let coding = hear(link, &mut noise, PrivateError::WrongPairingCode).await?;
    say(link, &mut noise).await?;
    let mut session = Session::new(noise.into_transport_mode().map_err(PrivateError::Noise)?, coding);
    match session.open(&receive(link).await?) {
        Some(Opened::Frame(proof)) if proof.is_empty() => Ok(session),
        _ => Err(PrivateError::HandshakeRepeated),
    }
}

/// Sends our next frame of the handshake.
async fn say(link: &mut BoxLink, noise: &mut HandshakeState) -> Result<(), PrivateError> {
    let mut bytes = [0; 128];
    let len = noise.write_message(&[content_byte(link)], &mut bytes).map_err(PrivateError::Noise)?;
    let text = format!("{MARKER}{}", STANDARD_NO_PAD.encode(&bytes[..len]));
    send_frame(link, Message::from(text), Coding::Text).await
}

/// What the link carries, as the other side is told.
fn content_byte(link: &BoxLink) -> u8 {
    match link.status().content {
        FrameContent::Text => 0,
        FrameContent::Bytes => 1,
    }
}

/// Reads the other side's next frame of the handshake, and finds how frames are sealed. `otherwise` is what is wrong if it was made with
/// another key.
async fn hear(link: &mut BoxLink, noise: &mut HandshakeState, otherwise: PrivateError) -> Result<Coding, PrivateError> {
    let frame = match receive(link).await {
        Err(PrivateError::Link(LinkError::FrameTooLarge(_))) => return Err(PrivateError::NotPrivate),
        frame => frame?,
    };
    let coded = frame.strip_prefix(MARKER.as_bytes()).ok_or(PrivateError::NotPrivate)?;
    let bytes = STANDARD_NO_PAD.decode(coded).map_err(|_not_base64| PrivateError::NotPrivate)?;
    let mut content = [0; 128];
    match (noise.read_message(&bytes, &mut content), content_byte(link)) {
        (Ok(1), 1) if content[0] == 1 => Ok(Coding::Bytes),
        (Ok(1), _) => Ok(Coding::Text),
        _ => Err(otherwise),
    }
}

async fn receive(link: &mut BoxLink) -> Result<Bytes, PrivateError> {
    loop {
        match poll_fn(|cx| Pin::new(&mut *link).poll_next(cx)).await {
            Some(Ok(Arrival::Frame { bytes, .. })) => return Ok(bytes),
            Some(Ok(Arrival::Closed { code, text } | Arrival::Exited { code, text })) => {
                return Err(PrivateError::Ended { code, text });
            }
            Some(Ok(Arrival::Acked { .. })) => {}
            Some(Ok(Arrival::Ended)) | None => return Err(PrivateError::Link(LinkError::Closed)),
            Some(Err(error)) => return Err(error.into()),
        }
    }
}

async fn send_frame(link: &mut BoxLink, bytes: Message, coding: Coding) -> Result<(), PrivateError> {
    let meta = Meta { is_binary: coding == Coding::Bytes, ..Meta::default() };
    put(link, Transmit::Frame { tag: Tag::default(), bytes, meta }).await?;
    Ok(poll_fn(|cx| Pin::new(&mut *link).poll_flush(cx)).await?)
}

async fn put(link: &mut BoxLink, transmit: Transmit) -> Result<(), LinkError> {
    poll_fn(|cx| Pin::new(&mut *link).poll_ready(cx)).await?;
    Pin::new(link).start_send(transmit)
}

/// Closes the link with the name of the reason.
async fn refuse(link: &mut BoxLink, error: &PrivateError) -> Result<(), LinkError> {
    let reason = CloseReason::Program(REFUSED, format!("private link refused: {}", error.name()));
    put(link, Transmit::Close(reason)).await?;
    poll_fn(|cx| Pin::new(&mut *link).poll_close(cx)).await
}
