//! The HTTP side: the only async room. It hands out pages and never touches the kernel.

mod status;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE as CONTENT_TYPE_HEADER;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower_http::compression::predicate::SizeAbove;
use tower_http::compression::{CompressionLayer, CompressionLevel};

use crate::collector::Pages;
use crate::config::ListenAddress;
use crate::metrics::CONTENT_TYPE;

/// A page is waited for no longer than a scraper would.
const PAGE_DEADLINE: Duration = Duration::from_secs(10);
/// How long requests under way may take when mrscope stops.
const STOP_GRACE: Duration = Duration::from_millis(300);
/// Level 6 takes seven times as long for a page a tenth smaller.
const GZIP_LEVEL: i32 = 1;
/// Smaller answers gain nothing from gzip.
const GZIP_FROM_BYTES: u64 = 256;

/// The address could not be had.
#[derive(Debug, thiserror::Error)]
#[error("can't listen on {address}, expected a free address of this machine")]
pub struct ListenError {
    pub address: String,
    source: io::Error,
}

/// Takes the address.
///
/// # Errors
/// It is in use, or not of this machine.
pub async fn listen(address: &ListenAddress) -> Result<TcpListener, ListenError> {
    let bound = match address {
        ListenAddress::At(address) => TcpListener::bind(address.as_str()).await,
        ListenAddress::Any(port) => {
            match TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, *port))).await {
                // A machine without IPv6.
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                    TcpListener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, *port))).await
                }
                bound => bound,
            }
        }
    };
    bound.map_err(|source| ListenError { address: address.to_string(), source })
}

/// Serves on all listeners, with the page at `telemetry_path`, until `stop` completes; then gives
/// requests under way a moment.
///
/// # Errors
/// A listener fails, or the pages' thread has ended.
pub async fn serve(
    listeners: Vec<TcpListener>,
    telemetry_path: &str,
    pages: Pages,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let (stopping, stopped) = watch::channel(false);
    let router = router(telemetry_path, pages.clone());
    // Those still at work end with it.
    let mut servers = JoinSet::new();
    for listener in listeners {
        let mut stopped = stopped.clone();
        let signal = async move {
            // A sender that is gone is a stop too.
            let _ = stopped.wait_for(|stopped| *stopped).await;
        };
        let server = axum::serve(listener, router.clone()).with_graceful_shutdown(signal);
        servers.spawn(server.into_future());
    }
    let served = async {
        while let Some(ended) = servers.join_next().await {
            ended.map_err(io::Error::other)??;
        }
        Ok(())
    };
    tokio::select! {
        () = pages.ended() => Err(io::Error::other("the thread that reads the kernel has ended")),
        served = served => served,
        () = async {
            stop.await;
            stopping.send_replace(true);
            tokio::time::sleep(STOP_GRACE).await;
        } => Ok(()),
    }
}

fn router(telemetry_path: &str, pages: Pages) -> Router {
    let gzip = CompressionLayer::new()
        .gzip(true)
        .quality(CompressionLevel::Precise(GZIP_LEVEL))
        .compress_when(SizeAbove::new(GZIP_FROM_BYTES));
    let landing = status::page(telemetry_path);
    Router::new()
        .route("/", get(|| async { landing }))
        .route(telemetry_path, get(metrics))
        .route("/-/healthy", get(|| async { "mrscope is healthy.\n" }))
        .route("/-/ready", get(ready))
        .layer(gzip)
        .with_state(pages)
}

/// The figures; `collect[]=x`, which may be repeated, asks for those of some collectors only.
async fn metrics(State(pages): State<Pages>, RawQuery(query): RawQuery) -> Response {
    let named: Vec<_> = form_urlencoded::parse(query.unwrap_or_default().as_bytes())
        .filter(|(key, _)| key == "collect[]")
        .map(|(_, collector)| collector.into_owned())
        .collect();
    let choice = match pages.choose(&named) {
        Ok(choice) => choice,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    };
    match tokio::time::timeout(PAGE_DEADLINE, pages.get(choice)).await {
        Ok(Ok(text)) => ([(CONTENT_TYPE_HEADER, CONTENT_TYPE)], text).into_response(),
        Ok(Err(error)) => unavailable(&error.to_string()),
        Err(_) => unavailable("the page took too long"),
    }
}

async fn ready(State(pages): State<Pages>) -> Response {
    if pages.ready() {
        "mrscope is ready.\n".into_response()
    } else {
        unavailable("mrscope is starting")
    }
}

fn unavailable(reason: &str) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response()
}
