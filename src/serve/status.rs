//! The page for people at `/`.

use axum::response::Html;

/// What mrscope is and where its endpoints are. The path is one of plain characters.
pub fn page(telemetry_path: &str) -> Html<String> {
    Html(format!(
        "<!DOCTYPE html>\n\
         <html lang=\"en\"><head><meta charset=\"utf-8\"><title>mrscope</title></head><body>\n\
         <h1>mrscope {version}</h1>\n\
         <p>{about}.</p>\n\
         <ul>\n\
         <li><a href=\"{telemetry_path}\">{telemetry_path}</a>: the figures, for Prometheus</li>\n\
         <li><a href=\"/-/healthy\">/-/healthy</a>: whether it runs</li>\n\
         <li><a href=\"/-/ready\">/-/ready</a>: whether everything is attached that can be</li>\n\
         </ul>\n\
         </body></html>\n",
        version = env!("CARGO_PKG_VERSION"),
        about = env!("CARGO_PKG_DESCRIPTION"),
    ))
}
