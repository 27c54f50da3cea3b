//! The API's reference, the catalog by which programs find it and the API documents (RFC 9727), and the pages of docs/ of this version. None
//! of it needs a token; the reference, which a test makes of `/openapi.json`, needs no script, and stands within the console for a session.

use std::collections::BTreeMap;
use std::future::ready;
use std::io::Read as _;
use std::sync::LazyLock;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, Path, Request, State};
use axum::http::{HeaderName, HeaderValue, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tower_http::compression::CompressionLayer;

use super::acting::as_actor;
use super::extract::Call;
use super::peer::Peer;
use super::problem::no_route;
use super::{AppState, auth, pages};

const REFERENCE: &str = include_str!("../../web/assets/docs/reference.html");
const STYLE: &str = include_str!("../../web/assets/docs/page.css");
/// Links that are relative to the server, which may have several names.
const CATALOG: &str = include_str!("../../web/assets/docs/api-catalog.json");

/// The type of a set of links (RFC 9264) that is such a catalog.
const CATALOG_TYPE: &str = r#"application/linkset+json; profile="https://www.rfc-editor.org/info/rfc9727""#;

const POLICY: &str = "default-src 'none'; style-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// The checked-in document, which a test keeps equal to the code. The program has it compressed by build.rs, and as text once it was asked for.
pub static DOCUMENT: LazyLock<String> =
    LazyLock::new(|| decompressed(include_bytes!(concat!(env!("OUT_DIR"), "/v1.json.gz"))));

/// Its form of `OpenAPI` 3.0, for clients that read no newer one.
pub static DOCUMENT_3_0: LazyLock<String> =
    LazyLock::new(|| decompressed(include_bytes!(concat!(env!("OUT_DIR"), "/v1-3.0.json.gz"))));

const CATALOG_LINK: &str = r#"</.well-known/api-catalog>; rel="api-catalog""#;

fn decompressed(document: &[u8]) -> String {
    let mut text = String::new();
    flate2::read::GzDecoder::new(document).read_to_string(&mut text).expect("build.rs compressed it");
    text
}

/// The pages and their pictures, by their path in docs/, as text once one was asked for.
static PAGES: LazyLock<BTreeMap<String, String>> = LazyLock::new(|| {
    let pages = decompressed(include_bytes!(concat!(env!("OUT_DIR"), "/docs.json.gz")));
    serde_json::from_str(&pages).expect("build.rs wrote it")
});

/// The list of all pages in the form that language models look for (llmstxt.org): a title, a summary, and lists of links.
static INDEX: LazyLock<String> = LazyLock::new(|| {
    let lists = PAGES["README.md"].split_once("\n## ").map_or("", |(_, lists)| lists);
    format!(
        "# mps-manager\n\n> One server a GPU host that owns NVIDIA's Multi-Process Service: it keeps daemons running, remembers \
         tenants and their limits, and proves that they hold.\n\n## {}",
        lists.replace("](", "](/docs/")
    )
});

pub(super) fn router() -> Router<AppState> {
    Router::new()
        .route("/docs", get(reference))
        .route("/docs/page.css", get(|| ready(answer("text/css; charset=utf-8", STYLE))))
        .route("/docs/{*page}", get(page))
        .route("/llms.txt", get(|| ready(answer("text/plain; charset=utf-8", &INDEX))))
        .route("/.well-known/api-catalog", get(|| ready(answer(CATALOG_TYPE, CATALOG))))
        .layer(CompressionLayer::new())
        .route("/openapi.json", get(|| ready(document(&DOCUMENT))))
        .route("/openapi-3.0.json", get(|| ready(document(&DOCUMENT_3_0))))
}

fn document(text: &'static str) -> ([(header::HeaderName, &'static str); 1], Bytes) {
    ([(header::CONTENT_TYPE, "application/json")], Bytes::from_static(text.as_bytes()))
}

fn answer(mime: &'static str, text: &'static str) -> Response {
    let headers: [(HeaderName, &str); 4] = [
        (header::CONTENT_TYPE, mime),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        // The files change only with the binary; browsers revalidate after a day.
        (header::CACHE_CONTROL, "public, max-age=86400"),
        (header::LINK, CATALOG_LINK),
    ];
    (headers, Bytes::from_static(text.as_bytes())).into_response()
}

async fn reference(
    State(app): State<AppState>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    mut request: Request,
) -> Response {
    let mut response = match auth::session(&app, peer, request.headers()) {
        Some((admission, key)) => {
            let actor = auth::note(&mut request, admission, Some(key));
            let call = |ctx| Call { app: app.clone(), ctx };
            as_actor(&app, actor, request, |ctx, _| pages::within_console(call(ctx), REFERENCE)).await
        }
        None => {
            let mut response = pages::outside(&app, REFERENCE).await;
            response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
            response
        }
    };
    response.headers_mut().insert(header::LINK, HeaderValue::from_static(CATALOG_LINK));
    response
}

async fn page(Path(page): Path<String>, uri: Uri) -> Response {
    let is_picture = std::path::Path::new(&page).extension().is_some_and(|extension| extension == "svg");
    let mime = if is_picture { "image/svg+xml" } else { "text/markdown; charset=utf-8" };
    match PAGES.get(&page) {
        Some(text) => answer(mime, text),
        None => no_route(uri).await.into_response(),
    }
}
