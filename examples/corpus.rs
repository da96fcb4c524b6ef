//! Writes one of the histories that tests and benches use: `cargo run --example corpus -- small|medium|large|refs FOLDER NAME`.

#[path = "../tests/support/mod.rs"]
mod support;

use support::corpus::{self, LARGE, MANY_REFS, MEDIUM, SMALL};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [size, folder, name] = arguments.as_slice() else {
        eprintln!("usage: corpus small|medium|large|refs FOLDER NAME");
        std::process::exit(2);
    };
    let size = match size.as_str() {
        "small" => SMALL,
        "medium" => MEDIUM,
        "large" => LARGE,
        "refs" => MANY_REFS,
        other => {
            eprintln!("no size is called {other}; there are small, medium, large and refs");
            std::process::exit(2);
        }
    };
    let made = corpus::make(std::path::Path::new(folder), name, size);
    println!("{}", made.display());
}
