//! Where mrscope is reached: addresses and the path of the page. It binds nothing.

use std::fmt;
use std::net::SocketAddr;

use super::notation::Expected;

/// Not registered with anybody; 9100 to 9999 are taken.
const DEFAULT_PORT: u16 = 10042;

/// The HTTP side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Web {
    /// At least one.
    pub listen_addresses: Vec<ListenAddress>,
    /// Where the page is; never a path that mrscope answers otherwise.
    pub telemetry_path: String,
}

impl Default for Web {
    fn default() -> Self {
        Self {
            listen_addresses: vec![ListenAddress::Any(DEFAULT_PORT)],
            telemetry_path: "/metrics".to_owned(),
        }
    }
}

/// Where to serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// `:PORT`: every address of the machine.
    Any(u16),
    /// A name or an address with a port.
    At(String),
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any(port) => write!(f, ":{port}"),
            Self::At(address) => f.write_str(address),
        }
    }
}

/// # Errors
/// No port, or a host that is none.
pub fn listen_address(text: &str) -> Result<ListenAddress, Expected> {
    let address = || {
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse().ok()?;
        if host.is_empty() {
            return Some(ListenAddress::Any(port));
        }
        let named = !host.contains(':') || text.parse::<SocketAddr>().is_ok();
        named.then(|| ListenAddress::At(text.to_owned()))
    };
    address().ok_or_else(|| {
        Expected("HOST:PORT, [IPv6]:PORT or :PORT, with a port from 0 to 65535".to_owned())
    })
}

/// # Errors
/// A path that mrscope answers otherwise, or one with characters that mean something in a URL.
pub fn telemetry_path(text: &str) -> Result<String, Expected> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/-._~".contains(c);
    let free = text != "/" && !text.starts_with("/-/");
    if text.starts_with('/') && free && text.chars().all(plain) {
        Ok(text.to_owned())
    } else {
        Err(Expected(
            "a path such as /metrics, of letters, digits and -._~, neither / nor below /-/".into(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_host_is_every_address() {
        assert_eq!(listen_address(":10042"), Ok(ListenAddress::Any(10042)));
        assert_eq!(listen_address("[::1]:0"), Ok(ListenAddress::At("[::1]:0".into())));
        assert_eq!(listen_address("localhost:1"), Ok(ListenAddress::At("localhost:1".into())));
        for text in ["", ":", "here", "::1:80:x", "::1:80", "a:70000", "[::1]"] {
            assert!(listen_address(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_page_takes_no_path_that_is_taken_or_means_something_else() {
        for text in ["/metrics", "/rdma/metrics", "/m-1.x_~"] {
            assert_eq!(telemetry_path(text).as_deref(), Ok(text));
        }
        for text in ["", "metrics", "/", "/-/healthy", "/-/ready", "/{x}", "/a?b", "/a b", "/ä"] {
            assert!(telemetry_path(text).is_err(), "{text}");
        }
    }
}
