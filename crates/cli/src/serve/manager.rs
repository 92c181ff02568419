//! Notifies the service manager: systemd names a socket for this in `NOTIFY_SOCKET`.

/// Clients can connect.
pub(super) fn ready() {
    tell("READY=1");
}

/// The end has begun.
pub(super) fn stopping() {
    tell("STOPPING=1");
}

#[cfg(target_os = "linux")]
fn tell(state: &str) {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    // A name in place of a path begins with @.
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&name),
    };
    let told = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(error) = told {
        tracing::warn!("the service manager cannot be told {state}: {error}");
    }
}

#[cfg(not(target_os = "linux"))]
fn tell(_state: &str) {}
