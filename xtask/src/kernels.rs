//! `cargo xtask kernels`: CUDA C++ to archives that the crate embeds.

use std::io::Write;
use std::path::{Path, PathBuf};

use lzma_rust2::{LzmaOptions, LzmaWriter};

#[path = "../../crates/spec-cuda/src/archive.rs"]
#[allow(dead_code, unused_macros, unused_imports)]
mod archive;

use archive::Kind;

use crate::manifest::{Manifest, sha256};
use crate::nvrtc::Nvrtc;
use crate::toolchain::{self, PACKAGES, Toolchain};
use crate::{Result, read, root, write};

/// Machine code for these; each also runs on later minor versions.
const SASS: [u32; 6] = [80, 86, 89, 90, 100, 120];
/// PTX for what comes later. Every device below 9.0 has machine code, so the
/// text may use what 9.0 brought.
const PTX: u32 = 90;

/// How everything is compiled. Without contraction, arithmetic is what it says.
const OPTIONS: [&str; 4] =
    ["--std=c++17", "--fmad=false", "--device-int128", "--no-source-include"];

/// How far back packing looks: further than any image is long.
const DICTIONARY: u32 = 8 << 20;

/// The most bytes that all archives may take.
const LIMIT: u64 = 3 << 20;

fn kernels() -> PathBuf {
    root().join("crates/spec-cuda/kernels")
}

fn compiled() -> PathBuf {
    root().join("crates/spec-cuda/compiled")
}

/// The task.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let flag = |name| arguments.contains(&name);
    let names: Vec<&str> = arguments.iter().copied().filter(|a| !a.starts_with("--")).collect();
    let known = ["--check", "--hashes-only", "--verbose"];
    if let Some(other) = arguments.iter().find(|a| a.starts_with("--") && !known.contains(a)) {
        return Err(format!("`{other}` is no option of kernels, see cargo xtask help"));
    }
    if flag("--check") {
        return check(flag("--hashes-only"));
    }
    let sources = sources()?;
    if let Some(missing) = names.iter().find(|n| !sources.iter().any(|s| s == *n)) {
        return Err(format!(
            "there is no {}",
            kernels().join(missing).with_extension("cu").display()
        ));
    }
    let sources = sources.iter().map(String::as_str);
    let chosen: Vec<&str> = sources.filter(|s| names.is_empty() || names.contains(s)).collect();
    let compiler = Compiler::new()?;
    let path = compiled().join("manifest.txt");
    let mut manifest = if names.is_empty() { Manifest::default() } else { committed()? };
    facts(&mut manifest, &chosen)?;
    manifest.set("compiler NVRTC".to_owned(), compiler.version());
    for name in chosen {
        let archive = compiler.archive(name, flag("--verbose"))?;
        describe(&mut manifest, name, &archive)?;
        println!("{name}: {} bytes", archive.len());
        write(&compiled().join(name).with_extension("bin"), &archive)?;
    }
    write(&path, manifest.text().as_bytes())?;
    let total = compiled_size()?;
    if total > LIMIT {
        return Err(format!(
            "{} holds {total} bytes of archives and {LIMIT} are the limit, since git keeps every \
             version of them: make fewer kernels from a template, or smaller ones",
            compiled().display()
        ));
    }
    Ok(())
}

/// Bytes of all archives.
fn compiled_size() -> Result<u64> {
    let folder = compiled();
    let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
    let mut total = 0;
    for entry in std::fs::read_dir(&folder).map_err(failed)? {
        total += entry.and_then(|entry| entry.metadata()).map_err(failed)?.len();
    }
    Ok(total)
}

/// The names of all kernel files, in order.
fn sources() -> Result<Vec<String>> {
    files("cu")
}

fn files(extension: &str) -> Result<Vec<String>> {
    let folder = kernels();
    let entries = std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    Ok(names)
}

fn committed() -> Result<Manifest> {
    let path = compiled().join("manifest.txt");
    if !path.exists() {
        return Ok(Manifest::default());
    }
    Ok(Manifest::parse(&String::from_utf8_lossy(&read(&path)?)))
}

/// Everything a build depends on: packages, options, headers, sources.
fn facts(manifest: &mut Manifest, sources: &[&str]) -> Result<()> {
    for kind in ["package ", "option ", "header "] {
        manifest.remove(kind);
    }
    for package in PACKAGES {
        let (name, version) = package.split_once("==").unwrap_or((package, ""));
        manifest.set(format!("package {name}"), version.to_owned());
    }
    for option in OPTIONS {
        manifest.set("option".to_owned() + " " + option, "set".to_owned());
    }
    for header in files("cuh")? {
        let bytes = read(&kernels().join(&header).with_extension("cuh"))?;
        manifest.set(format!("header {header}.cuh"), sha256(&bytes));
    }
    for source in sources {
        let bytes = read(&kernels().join(source).with_extension("cu"))?;
        manifest.set(format!("source {source}.cu"), sha256(&bytes));
    }
    Ok(())
}

/// What came out: the archive and every image in it, and what went in. An
/// archive names the sources it was built from, so that building one kernel
/// file anew after a header changed does not vouch for the others.
fn describe(manifest: &mut Manifest, name: &str, archive: &[u8]) -> Result<()> {
    manifest.remove(&format!("image {name} "));
    for entry in archive::entries(archive).ok_or("the archive is damaged")? {
        let kind = if entry.kind == Kind::Sass { "sass" } else { "ptx" };
        let image = entry.unpack().ok_or("the archive is damaged")?;
        manifest.set(format!("image {name} {kind} {}", entry.architecture), sha256(&image));
    }
    manifest.set(format!("archive {name}.bin"), sha256(archive));
    manifest.set(format!("inputs {name}.bin"), inputs(name)?);
    Ok(())
}

/// One hash over all that an archive is built from.
fn inputs(name: &str) -> Result<String> {
    let mut manifest = Manifest::default();
    facts(&mut manifest, &[name])?;
    Ok(sha256(manifest.text().as_bytes()))
}

fn check(hashes_only: bool) -> Result<()> {
    let sources = sources()?;
    let stated = committed()?;
    let mut now = Manifest::default();
    now.set("compiler NVRTC".to_owned(), stated.get("compiler NVRTC").unwrap_or("").to_owned());
    facts(&mut now, &sources.iter().map(String::as_str).collect::<Vec<_>>())?;
    for name in &sources {
        let path = compiled().join(name).with_extension("bin");
        describe(&mut now, name, &read(&path)?)?;
    }
    differ(&stated, &now)?;
    println!("{} archives agree with the manifest and the sources", sources.len());
    if hashes_only {
        return Ok(());
    }
    let compiler = match Compiler::new() {
        Ok(compiler) => compiler,
        Err(words) => {
            println!("not rebuilt, the compiler is not to be had: {words}");
            return Ok(());
        }
    };
    now.set("compiler NVRTC".to_owned(), compiler.version());
    for name in &sources {
        describe(&mut now, name, &compiler.archive(name, false)?)?;
    }
    differ(&stated, &now)?;
    println!("{} archives rebuilt from the sources, to the byte", sources.len());
    Ok(())
}

fn differ(stated: &Manifest, now: &Manifest) -> Result<()> {
    let differences = stated.differences(now);
    if differences.is_empty() {
        return Ok(());
    }
    Err(format!(
        "crates/spec-cuda/compiled is not what the sources give; run cargo xtask kernels\n  {}",
        differences.join("\n  ")
    ))
}

struct Compiler {
    toolchain: Toolchain,
    nvrtc: Nvrtc,
}

impl Compiler {
    fn new() -> Result<Self> {
        let toolchain = toolchain::install()?;
        let nvrtc = Nvrtc::load(&toolchain)?;
        Ok(Compiler { toolchain, nvrtc })
    }

    fn version(&self) -> String {
        format!("{}.{}", self.nvrtc.version.0, self.nvrtc.version.1)
    }

    fn options(&self, architecture: &str, verbose: bool) -> Vec<String> {
        let mut options: Vec<String> = OPTIONS.iter().map(|o| (*o).to_owned()).collect();
        options.push(format!("--gpu-architecture={architecture}"));
        let include = |path: &Path| format!("--include-path={}", path.display());
        options.push(include(&kernels()));
        options.extend(self.toolchain.includes.iter().map(|p| include(p)));
        if verbose {
            options.push("--ptxas-options=-v".to_owned());
        }
        options
    }

    /// Compiles one kernel file for everything and packs what comes out.
    fn archive(&self, name: &str, verbose: bool) -> Result<Vec<u8>> {
        let source = read(&kernels().join(name).with_extension("cu"))?;
        let targets: Vec<_> =
            SASS.map(|a| (a, Kind::Sass)).into_iter().chain([(PTX, Kind::Ptx)]).collect();
        // A thread for each target: the compiler locks where it must.
        let images: Vec<Result<Image>> = std::thread::scope(|scope| {
            let start = |&(architecture, kind)| {
                let source = &source;
                scope.spawn(move || self.image(name, source, architecture, kind, verbose))
            };
            let workers: Vec<_> = targets.iter().map(start).collect();
            let lost = |_| Err("a compilation ended in a panic".to_owned());
            workers.into_iter().map(|worker| worker.join().unwrap_or_else(lost)).collect()
        });
        let mut directory = Vec::new();
        let mut packed = Vec::new();
        for (image, (architecture, kind)) in images.into_iter().zip(&targets) {
            let image = image?;
            if !image.log.is_empty() {
                println!("{}", image.log);
            }
            let sizes = [image.packed.len(), image.size].map(u32::try_from);
            let [Ok(packed_size), Ok(size)] = sizes else {
                return Err(format!("{name}.cu: an image is too large"));
            };
            let kind = u32::from(*kind == Kind::Ptx);
            for word in [kind, *architecture, packed_size, size] {
                directory.extend(word.to_le_bytes());
            }
            packed.extend(image.packed);
        }
        let count = targets.len() as u32;
        Ok([archive::MAGIC.as_slice(), &count.to_le_bytes(), &directory, &packed].concat())
    }

    fn image(
        &self,
        name: &str,
        source: &[u8],
        architecture: u32,
        kind: Kind,
        verbose: bool,
    ) -> Result<Image> {
        let sass = kind == Kind::Sass;
        let target = format!("{}_{architecture}", if sass { "sm" } else { "compute" });
        let options = self.options(&target, verbose && sass);
        let compiled = self.nvrtc.compile(name, source, &options, sass)?;
        let packed = pack(&compiled.image).map_err(|e| format!("{target}: {e}"))?;
        let mut log = String::new();
        if verbose || compiled.log.contains("warning") {
            log = compiled.log;
        }
        let size = compiled.image.len();
        if verbose {
            log.push_str(&format!("\n{name} {target}: {size} bytes, {} packed", packed.len()));
        }
        Ok(Image { packed, size, log })
    }
}

/// What a target compiles to.
struct Image {
    packed: Vec<u8>,
    /// Bytes before packing.
    size: usize,
    log: String,
}

/// LZMA: code for neighbouring kernels repeats itself far apart, which zlib's
/// 32 KiB do not see.
fn pack(image: &[u8]) -> std::io::Result<Vec<u8>> {
    let options = LzmaOptions { dict_size: DICTIONARY, ..LzmaOptions::with_preset(9) };
    let mut writer = LzmaWriter::new_use_header(Vec::new(), &options, Some(image.len() as u64))?;
    writer.write_all(image)?;
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_can_be_unpacked() {
        let image: Vec<u8> = (0..300_000u32).flat_map(|i| (i % 977).to_le_bytes()).collect();
        let packed = pack(&image).unwrap();
        assert!(packed.len() < image.len() / 10);
        let mut entry = archive::Entry {
            kind: Kind::Sass,
            architecture: 90,
            packed: &packed,
            size: image.len(),
        };
        assert!(entry.unpack().is_some_and(|unpacked| unpacked == image));
        entry.size -= 1;
        assert!(entry.unpack().is_none());
        entry.packed = &packed[..packed.len() / 2];
        assert!(entry.unpack().is_none());
    }
}
