//! The HTTP side: the only async room. It hands out pages and never touches the kernel.

mod accept;
mod status;

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE as CONTENT_TYPE_HEADER;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::future::select_all;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
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

/// Serves on all listeners, so many `connections` at once, with the page at `telemetry_path`, until
/// `stop` completes; then gives requests under way a moment.
///
/// # Errors
/// A listener fails, or the pages' thread has ended.
pub async fn serve(
    listeners: Vec<TcpListener>,
    telemetry_path: &str,
    pages: Pages,
    connections: usize,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let router = router(telemetry_path, pages.clone());
    let graceful = GracefulShutdown::new();
    let slots = Arc::new(Semaphore::new(connections));
    let takers = listeners.into_iter().map(|listener| {
        Box::pin(accept::accept(listener, router.clone(), Arc::clone(&slots), &graceful))
    });
    let served = select_all(takers);
    let outcome = tokio::select! {
        () = pages.ended() => Err(io::Error::other("the thread that makes the pages has ended")),
        (failed, ..) = served => failed.map(|_: Infallible| ()),
        () = stop => Ok(()),
    };
    // None is taken any more; those under way have a moment, and end with the runtime.
    let _ = tokio::time::timeout(STOP_GRACE, graceful.shutdown()).await;
    outcome
}

fn router(telemetry_path: &str, pages: Pages) -> Router {
    let gzip = CompressionLayer::new()
        .gzip(true)
        .quality(CompressionLevel::Precise(GZIP_LEVEL))
        .compress_when(SizeAbove::new(GZIP_FROM_BYTES));
    let path = telemetry_path.to_owned();
    let landing =
        |State(pages): State<Pages>| async move { status::page(&path, pages.status().as_deref()) };
    Router::new()
        .route("/", get(landing))
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
