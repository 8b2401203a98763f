//! Contender: feather 0.8. Its handlers run on coroutines, and its files may have at most 4 MB.

use feather::{App, middleware, next};
use samovar_rivals::{Message, Options, TEXT, TEXT_500, UPLOAD_LEN_MAX, id, sleep};

fn main() {
    let options = Options::from_command_line();
    let items = options.items();
    let mut app = App::without_logger();
    app.workers(options.threads).max_body(UPLOAD_LEN_MAX);
    app.get(
        "/text",
        middleware!(|_req, res, _ctx| {
            res.send_text(TEXT);
            next!()
        }),
    );
    app.get(
        "/text500",
        middleware!(|_req, res, _ctx| {
            res.send_bytes(TEXT_500);
            next!()
        }),
    );
    app.get(
        "/json",
        middleware!(|_req, res, _ctx| {
            res.send_json(&Message { message: TEXT });
            next!()
        }),
    );
    app.get(
        "/pooled",
        middleware!(|_req, res, _ctx| {
            res.send_text(TEXT);
            next!()
        }),
    );
    app.get(
        "/sleep10",
        middleware!(|_req, res, _ctx| {
            res.send_text(sleep(10));
            next!()
        }),
    );
    app.get(
        "/sleep1000",
        middleware!(|_req, res, _ctx| {
            res.send_text(sleep(1000));
            next!()
        }),
    );
    app.get(
        "/item",
        move |req: &mut feather::Request, res: &mut feather::Response, _: &feather::AppContext| {
            res.send_json(&items.find(id(req.uri.query()))?);
            next!()
        },
    );
    app.post(
        "/upload",
        middleware!(|req, res, _ctx| {
            res.send_text(format!("{}\n", req.body.len()));
            next!()
        }),
    );
    app.listen(format!("127.0.0.1:{}", options.port));
}
