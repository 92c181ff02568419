//! The address of the page: for people to follow, as a QR code for a phone, and opened in a browser.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};

use crate::open::escaped;
use crate::pairing;

/// The file that leads a browser to the page.
const REDIRECT: &str = "open.html";

/// The address of the page, with the token in its fragment, which browsers never send.
pub(super) fn page_address(scheme: &str, listening: SocketAddr, token: Option<&str>) -> String {
    let scheme = if scheme == "wss" { "https" } else { "http" };
    let token = token.map(|token| format!("#token={}", escaped(token))).unwrap_or_default();
    format!("{scheme}://{}/{token}", reachable(listening))
}

/// Prints the address as a QR code if standard error is a terminal and another device could connect.
pub(super) fn print_qr_code(address: &str, listening: SocketAddr) {
    if listening.ip().is_loopback() || !io::stderr().is_terminal() {
        return;
    }
    pairing::print_qr_code(address);
}

/// A file with the address, which only this user can read. It is removed when this is dropped.
#[derive(Debug)]
pub(super) struct Redirect(PathBuf);

impl Redirect {
    /// Opens the page in the user's browser. The address has the token, and others on this machine can read the arguments of
    /// every program: so the browser is given a file that leads there.
    pub(super) fn open(data: &Path, address: &str) -> io::Result<Self> {
        let path = std::path::absolute(data.join(REDIRECT))?;
        // A file of an earlier host may have been readable by others.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = fs::OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&path)?;
        let redirect = Self(path);
        // Nothing in the address needs an escape in HTML: scheme, host, port, and a token with percent escapes.
        write!(
            file,
            "<!doctype html>\n<meta charset=\"utf-8\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
             <meta http-equiv=\"refresh\" content=\"0;url={address}\">\n<title>Breakbulk</title>\n\
             <a href=\"{address}\">Open the page</a>\n"
        )?;
        open::that_detached(&redirect.0)?;
        Ok(redirect)
    }
}

impl Drop for Redirect {
    fn drop(&mut self) {
        // It contains a token of a host that has ended: it does no harm if it stays.
        let _ = fs::remove_file(&self.0);
    }
}

/// The address that other devices connect to. For a host that listens on all addresses, it is this machine's address in
/// its network.
fn reachable(listening: SocketAddr) -> SocketAddr {
    if !listening.ip().is_unspecified() {
        return listening;
    }
    let own = own_address(listening.is_ipv6()).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    SocketAddr::new(own, listening.port())
}

/// The address from which this machine would connect to others. Nothing is sent: the destination, which is for examples only,
/// just makes the system choose.
fn own_address(is_ipv6: bool) -> Option<IpAddr> {
    let ask = |from: IpAddr, to: IpAddr| {
        let socket = UdpSocket::bind((from, 0)).ok()?;
        socket.connect((to, 9)).ok()?;
        socket.local_addr().ok().map(|address| address.ip()).filter(|own| !own.is_unspecified())
    };
    let example = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    let v4 = ask(IpAddr::V4(Ipv4Addr::UNSPECIFIED), example);
    let example = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));
    v4.or_else(|| if is_ipv6 { ask(IpAddr::V6(Ipv6Addr::UNSPECIFIED), example) } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_in_the_fragment() {
        let address = |scheme, token| page_address(scheme, "127.0.0.1:4140".parse().unwrap(), token);
        assert_eq!(address("ws", Some("a+b")), "http://127.0.0.1:4140/#token=a%2Bb");
        assert_eq!(address("wss", None), "https://127.0.0.1:4140/");
    }

    #[test]
    fn an_address_that_stands_for_all_is_replaced_by_one_to_connect_to() {
        for all in ["0.0.0.0:4140", "[::]:4140"] {
            let reachable = reachable(all.parse().unwrap());
            assert!(!reachable.ip().is_unspecified() && reachable.port() == 4140, "{reachable}");
        }
        let one: SocketAddr = "[::1]:1".parse().unwrap();
        assert_eq!(reachable(one), one);
    }
}
