//! Compiles each BPF object and turns the records of `bpf/*.h` into Rust types: written once, in C.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;

/// The stems: `bpf/<stem>.h`, `bpf/<stem>.bpf.c`, `src/ebpf/<stem>.rs`.
const STEMS: [&str; 5] = ["umem", "verbs", "mlock", "tasks", "rows"];

const CLANG: &str = "clang-14";

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-env-changed=CLANG");
    println!("cargo:rerun-if-env-changed=LIBCLANG_PATH");

    for stem in STEMS {
        compile(stem, &out)?;
    }
    records(&out)
}

fn compile(stem: &str, out: &Path) -> Result<(), Box<dyn Error>> {
    let mut builder = SkeletonBuilder::new();
    builder
        .source(format!("bpf/{stem}.bpf.c"))
        .obj(out.join(format!("{stem}.bpf.o")))
        .clang(env::var_os("CLANG").unwrap_or_else(|| CLANG.into()))
        .clang_args(["-mcpu=v3", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"])
        .build()?;
    Ok(())
}

fn records(out: &Path) -> Result<(), Box<dyn Error>> {
    let includes = STEMS.map(|stem| format!("#include \"bpf/{stem}.h\"\n")).concat();
    bindgen::Builder::default()
        .header_contents("records.h", &includes)
        .clang_arg("-I.")
        .allowlist_file(r".*bpf/[a-z]+\.h")
        .derive_default(true)
        .derive_copy(true)
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .layout_tests(true)
        .generate()?
        .write_to_file(out.join("records.rs"))?;
    Ok(())
}
