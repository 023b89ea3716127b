//! `cargo xtask kernels`: compiles CUDA C++ to the archives that the crates embed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::manifest::{Manifest, sha256};
use crate::nvrtc::{Compiled, Nvrtc};
use crate::pack::archive::{self, Kind};
use crate::pack::{
    Image, Target, families, pack, reductions, sizes, target_name, with_short_frames,
};
use crate::toolchain::{self, Toolchain, packages};
use crate::{Result, read, root, write};

/// A folder of kernel files, and the folder of their archives. Paths are relative to the root.
struct Folder {
    /// The prefix of the kernels' names: "", or a name and a slash.
    prefix: &'static str,
    kernels: &'static str,
    compiled: &'static str,
    /// Headers of other folders that the kernels include.
    shared: &'static [&'static str],
    /// The architectures to compile machine code for, family by family; the code also runs on later
    /// minor versions. A program unpacks the images of a family up to its device's image.
    sass: &'static [&'static [u32]],
    /// The architecture of the PTX, which later devices run.
    ptx: u32,
    /// The largest total size of all archives, in bytes.
    limit: u64,
}

const FOLDERS: [Folder; 2] = [
    Folder {
        prefix: "",
        kernels: "crates/spec-cuda/kernels",
        compiled: "crates/spec-cuda/compiled",
        shared: &[],
        sass: &[&[80, 86, 89], &[90], &[100, 120]],
        // There is machine code for every device below 9.0, so the PTX may use
        // instructions of 9.0.
        ptx: 90,
        // crates.io takes packages of up to 10 MiB.
        limit: 9 << 20,
    },
    // Only benchmarks use these kernels, so their archives are kept small: any other device
    // compiles the PTX.
    Folder {
        prefix: "baselines/",
        kernels: "benches/kernels",
        compiled: "benches/compiled",
        shared: &["crates/spec-cuda/kernels/common.cuh"],
        sass: &[&[90]],
        ptx: 80,
        limit: 1 << 20,
    },
];

/// The options of every compilation. Without contraction (`--fmad=false`), multiplications and
/// additions round separately, as the source says.
const OPTIONS: [&str; 4] =
    ["--std=c++17", "--fmad=false", "--device-int128", "--no-source-include"];

/// Runs the task with the words after its name.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    if let ["--target", target, "--images", folder, names @ ..] = arguments {
        return write_images(target, Path::new(folder), names);
    }
    let flag = |name| arguments.contains(&name);
    let names: Vec<&str> = arguments.iter().copied().filter(|a| !a.starts_with("--")).collect();
    let known = ["--check", "--hashes-only", "--sizes", "--verbose"];
    if let Some(other) = arguments.iter().find(|a| a.starts_with("--") && !known.contains(a)) {
        return Err(format!("`{other}` is no option of kernels, see cargo xtask help"));
    }
    for name in &names {
        if !FOLDERS.iter().try_fold(false, |found, f| Ok::<_, String>(found | f.has(name)?))? {
            return Err(format!("there is no kernel file {name}.cu"));
        }
    }
    if flag("--check") {
        return check(&names, flag("--hashes-only"));
    }
    if flag("--sizes") {
        return FOLDERS.iter().try_for_each(|folder| folder.print_sizes(&names));
    }
    let compiler = Compiler::new()?;
    FOLDERS.iter().try_for_each(|folder| folder.build(&compiler, &names, flag("--verbose")))
}

/// Compiles the named kernel files, or all of them, for one architecture, and writes their images.
fn write_images(target: &str, folder: &Path, names: &[&str]) -> Result<()> {
    let architecture =
        target.parse().map_err(|_| format!("`{target}` is no architecture, expected 90 or so"))?;
    let [ours, _] = &FOLDERS;
    let compiler = Compiler::new()?;
    for name in ours.sources()? {
        if !names.is_empty() && !names.contains(&name.as_str()) {
            continue;
        }
        let source = read(&ours.source(&name))?;
        let image = compiler.compile(ours, &name, &source, (architecture, Kind::Sass), true)?;
        println!("{}", image.log);
        write(&folder.join(&name).with_extension("cubin"), &image.image)?;
    }
    Ok(())
}

/// Checks all hashes. Unless `hashes_only`, also rebuilds the named kernel files, or all of them,
/// and compares the results with the committed archives.
fn check(names: &[&str], hashes_only: bool) -> Result<()> {
    FOLDERS.iter().try_for_each(Folder::check_hashes)?;
    if hashes_only {
        return Ok(());
    }
    let compiler = Compiler::new().map_err(|words| {
        format!("{words}; without the compiler only hashes can be checked (--hashes-only)")
    })?;
    FOLDERS.iter().try_for_each(|folder| folder.check_build(&compiler, names))
}

impl Folder {
    fn source(&self, name: &str) -> PathBuf {
        root().join(self.kernels).join(name).with_extension("cu")
    }

    fn archive(&self, name: &str) -> PathBuf {
        root().join(self.compiled).join(name).with_extension("bin")
    }

    /// The name of a kernel file in the task's arguments.
    fn full_name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Whether this folder has the kernel file that an argument names.
    fn has(&self, argument: &str) -> Result<bool> {
        Ok(self.sources()?.iter().any(|name| argument == self.full_name(name)))
    }

    /// Compiles the kernel files in `names`; without names, every kernel file whose
    /// archive was built from other sources.
    fn build(&self, compiler: &Compiler, names: &[&str], verbose: bool) -> Result<()> {
        let committed = self.committed()?;
        let (sources, mut manifest) = self.expected(&compiler.version())?;
        let mut stale = Vec::new();
        for name in &sources {
            let full = self.full_name(name);
            let key = format!("inputs {name}.bin");
            let inputs = self.inputs(name)?;
            let current = committed.get(&key) == Some(&inputs) && self.has_all_targets(name)?;
            if names.contains(&full.as_str()) || names.is_empty() && !current {
                let archive = compiler.archive(self, name, verbose)?;
                println!("{full}: {} bytes", archive.len());
                write(&self.archive(name), &archive)?;
                self.describe(&mut manifest, name, &archive, inputs)?;
            } else {
                let stated = committed.get(&key).unwrap_or("absent").to_owned();
                self.describe(&mut manifest, name, &read(&self.archive(name))?, stated)?;
                if !current {
                    stale.push(full);
                }
            }
        }
        write(&root().join(self.compiled).join("manifest.txt"), manifest.text().as_bytes())?;
        if !stale.is_empty() {
            println!("left as they were, though their sources changed: {}", stale.join(", "));
        }
        let total = self.compiled_size()?;
        if total > self.limit {
            return Err(format!(
                "{} holds {total} bytes of archives and {} are the limit, since git keeps every \
                 version of them: make fewer kernels from a template, or smaller ones",
                self.compiled, self.limit
            ));
        }
        Ok(())
    }

    /// The architectures and kinds of code that a kernel file is compiled for, family by family.
    fn targets(&self) -> Vec<Vec<Target>> {
        let sass = |family: &&[u32]| family.iter().map(|&a| (a, Kind::Sass)).collect();
        self.sass.iter().map(sass).chain([vec![(self.ptx, Kind::Ptx)]]).collect()
    }

    /// Whether the archive exists and has code for all targets, in their families and order.
    fn has_all_targets(&self, name: &str) -> Result<bool> {
        let path = self.archive(name);
        Ok(path.exists() && families(&read(&path)?) == Some(self.targets()))
    }

    /// Prints the sizes of the named archives, or of all, and how long unpacking their images takes.
    fn print_sizes(&self, names: &[&str]) -> Result<()> {
        for name in self.sources()? {
            let full = self.full_name(&name);
            if names.is_empty() || names.contains(&full.as_str()) {
                let archive = read(&self.archive(&name))?;
                let sizes = sizes(&archive).ok_or_else(|| format!("{full} is damaged"))?;
                print!("{full}: {} bytes\n{sizes}", archive.len());
            }
        }
        println!("{}: {} bytes, {} at most", self.compiled, self.compiled_size()?, self.limit);
        Ok(())
    }

    /// The total size of all archives in bytes.
    fn compiled_size(&self) -> Result<u64> {
        let failed = |e: std::io::Error| format!("{}: {e}", self.compiled);
        let mut total = 0;
        for entry in std::fs::read_dir(root().join(self.compiled)).map_err(failed)? {
            total += entry.and_then(|entry| entry.metadata()).map_err(failed)?.len();
        }
        Ok(total)
    }

    /// The names of all kernel files, sorted.
    fn sources(&self) -> Result<Vec<String>> {
        let entries = std::fs::read_dir(root().join(self.kernels))
            .map_err(|e| format!("{}: {e}", self.kernels))?;
        let mut names: Vec<String> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|e| e == "cu"))
            .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
            .collect();
        names.sort();
        Ok(names)
    }

    fn committed(&self) -> Result<Manifest> {
        let path = root().join(self.compiled).join("manifest.txt");
        if !path.exists() {
            return Ok(Manifest::default());
        }
        Manifest::parse(&String::from_utf8_lossy(&read(&path)?))
    }

    /// The headers that a file includes, directly or through other headers, from its
    /// own folder and the shared folders. Headers of the compiler do not count: they
    /// belong to a package.
    fn headers(&self, file: &Path) -> Result<BTreeMap<String, PathBuf>> {
        let mut found = BTreeMap::new();
        let mut open = vec![file.to_owned()];
        while let Some(file) = open.pop() {
            let text = read(&file)?;
            let text = String::from_utf8_lossy(&text);
            let quoted =
                |line: &str| Some(line.strip_prefix("#include \"")?.split_once('"')?.0.to_owned());
            for name in text.lines().filter_map(quoted) {
                let own = root().join(self.kernels).join(&name);
                let shared = self.shared.iter().map(|path| root().join(path));
                let path = std::iter::once(own)
                    .chain(shared)
                    .find(|path| path.ends_with(&name) && path.exists());
                let path = path.ok_or_else(|| {
                    format!("{} includes {name}, which is no header", file.display())
                })?;
                if found.insert(name, path.clone()).is_none() {
                    open.push(path);
                }
            }
        }
        Ok(found)
    }

    /// All inputs of a build of `sources`: packages, options, the sources and their
    /// headers.
    fn facts(&self, sources: &[String]) -> Result<Manifest> {
        let mut manifest = Manifest::default();
        for package in packages() {
            let (name, version) = package.split_once("==").unwrap_or((package, ""));
            manifest.set(format!("package {name}"), version.to_owned());
        }
        for option in OPTIONS {
            manifest.set("option".to_owned() + " " + option, "set".to_owned());
        }
        for source in sources {
            let source = self.source(source);
            for (name, path) in self.headers(&source)? {
                manifest.set(format!("header {name}"), sha256(&read(&path)?));
            }
            let name = source.file_name().unwrap_or_default().to_string_lossy();
            manifest.set(format!("source {name}"), sha256(&read(&source)?));
        }
        Ok(manifest)
    }

    /// Adds the size of an archive, and the hashes of the archive, of every image in it and of its
    /// inputs to the manifest. Each archive has a hash of its own inputs: after a header has
    /// changed, rebuilding one kernel file must not make the other archives look new.
    fn describe(
        &self,
        manifest: &mut Manifest,
        name: &str,
        archive: &[u8],
        inputs: String,
    ) -> Result<()> {
        for entry in archive::entries(archive).ok_or("the archive is damaged")? {
            let kind = if entry.kind == Kind::Sass { "sass" } else { "ptx" };
            let image = entry.unpack().ok_or("the archive is damaged")?;
            manifest.set(format!("image {name} {kind} {}", entry.architecture), sha256(&image));
        }
        manifest.set(format!("archive {name}.bin"), sha256(archive));
        manifest.set(format!("bytes {name}.bin"), archive.len().to_string());
        manifest.set(format!("crc32 {name}.bin"), format!("{:08x}", crc32fast::hash(archive)));
        manifest.set(format!("inputs {name}.bin"), inputs);
        Ok(())
    }

    /// One hash over all inputs of an archive.
    fn inputs(&self, name: &str) -> Result<String> {
        Ok(sha256(self.facts(&[name.to_owned()])?.text().as_bytes()))
    }

    /// The names of the kernel files, and the manifest that their sources should have, without the
    /// lines of the archives.
    fn expected(&self, compiler: &str) -> Result<(Vec<String>, Manifest)> {
        let sources = self.sources()?;
        let mut now = self.facts(&sources)?;
        now.set("compiler NVRTC".to_owned(), compiler.to_owned());
        Ok((sources, now))
    }

    fn check_hashes(&self) -> Result<()> {
        let stated = self.committed()?;
        let (sources, mut now) = self.expected(stated.get("compiler NVRTC").unwrap_or(""))?;
        for name in &sources {
            self.describe(&mut now, name, &read(&self.archive(name))?, self.inputs(name)?)?;
        }
        self.differ(&now)?;
        println!(
            "{}: {} archives agree with the manifest and the sources",
            self.compiled,
            sources.len()
        );
        Ok(())
    }

    fn check_build(&self, compiler: &Compiler, names: &[&str]) -> Result<()> {
        let (sources, mut now) = self.expected(&compiler.version())?;
        let mut built = 0;
        for name in &sources {
            let is_wanted = names.is_empty() || names.contains(&self.full_name(name).as_str());
            let archive = match is_wanted {
                true => compiler.archive(self, name, false)?,
                false => read(&self.archive(name))?,
            };
            built += usize::from(is_wanted);
            self.describe(&mut now, name, &archive, self.inputs(name)?)?;
        }
        self.differ(&now)?;
        println!(
            "{}: {built} of {} archives rebuilt from the sources, to the byte",
            self.compiled,
            sources.len()
        );
        Ok(())
    }

    fn differ(&self, now: &Manifest) -> Result<()> {
        let differences = self.committed()?.differences(now);
        if differences.is_empty() {
            return Ok(());
        }
        Err(format!(
            "{} is not what the sources give; run cargo xtask kernels\n  {}",
            self.compiled,
            differences.join("\n  ")
        ))
    }
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

    fn options(&self, folder: &Folder, architecture: &str, verbose: bool) -> Vec<String> {
        let mut options: Vec<String> = OPTIONS.iter().map(|o| (*o).to_owned()).collect();
        options.push(format!("--gpu-architecture={architecture}"));
        let include = |path: &Path| format!("--include-path={}", path.display());
        options.push(include(&root().join(folder.kernels)));
        let shared = folder.shared.iter().filter_map(|header| Path::new(header).parent());
        options.extend(shared.map(|p| include(&root().join(p))));
        options.extend(self.toolchain.includes.iter().map(|p| include(p)));
        if verbose {
            options.push("--ptxas-options=-v".to_owned());
        }
        options
    }

    /// Compiles one kernel file for all targets and packs the images into an archive.
    fn archive(&self, folder: &Folder, name: &str, verbose: bool) -> Result<Vec<u8>> {
        let source = read(&folder.source(name))?;
        let targets = folder.targets();
        // One thread per target: the compiler has its own locks.
        let compiled: Vec<Result<Compiled>> = std::thread::scope(|scope| {
            let start = |&target: &Target| {
                let source = &source;
                scope.spawn(move || self.compile(folder, name, source, target, verbose))
            };
            let workers: Vec<_> = targets.iter().flatten().map(start).collect();
            let lost = |_| Err("a compilation ended in a panic".to_owned());
            workers.into_iter().map(|worker| worker.join().unwrap_or_else(lost)).collect()
        });
        let mut compiled = compiled.into_iter().collect::<Result<Vec<_>>>()?.into_iter();
        let mut images = Vec::new();
        for family in &targets {
            let family = family.iter().zip(&mut compiled).map(|(&target, compiled)| {
                let Compiled { image: bytes, log } = compiled;
                if verbose || log.contains("warning") {
                    println!("{log}\n{name} {}: {} bytes", target_name(target), bytes.len());
                }
                if target.1 == Kind::Ptx {
                    return Ok(Image { target, bytes });
                }
                let at_fault = |words| format!("{name}.cu for {}: {words}", target_name(target));
                reductions::check(&bytes).map_err(at_fault)?;
                Ok(Image { target, bytes: with_short_frames(&bytes)? })
            });
            images.push(family.collect::<Result<_>>()?);
        }
        pack(&images).map_err(|words| format!("{name}.cu: {words}"))
    }

    /// Compiles one kernel file for one target.
    fn compile(
        &self,
        folder: &Folder,
        name: &str,
        source: &[u8],
        target: Target,
        verbose: bool,
    ) -> Result<Compiled> {
        let sass = target.1 == Kind::Sass;
        let options = self.options(folder, &target_name(target), verbose && sass);
        self.nvrtc.compile(name, source, &options, sass)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archives_are_of_the_sources() {
        check(&[], true).unwrap();
    }

    #[test]
    fn an_archive_that_lacks_a_target_is_seen() {
        let [mut folder, _] = FOLDERS;
        assert!(folder.has_all_targets("tree_verify").unwrap());
        folder.ptx += 10;
        assert!(!folder.has_all_targets("tree_verify").unwrap());
        folder.ptx -= 10;
        folder.sass = &[&[80], &[86, 89], &[90], &[100, 120]];
        assert!(!folder.has_all_targets("tree_verify").unwrap(), "other families");
        assert!(!folder.has_all_targets("no_such_kernel").unwrap());
    }

    #[test]
    fn a_kernel_depends_on_the_headers_that_it_includes() {
        let [ours, baselines] = &FOLDERS;
        let of = |folder: &Folder, name| -> Vec<String> {
            folder.headers(&folder.source(name)).unwrap().into_keys().collect()
        };
        assert_eq!(of(ours, "tree_verify"), ["common.cuh", "ids.cuh", "params/tree_verify.cuh"]);
        assert_eq!(of(baselines, "ngram"), ["blocks.cuh", "common.cuh"]);
        assert!(of(ours, "sample_logits").contains(&"select.cuh".to_owned()));
        assert!(!of(ours, "unique").contains(&"select.cuh".to_owned()));
    }
}
