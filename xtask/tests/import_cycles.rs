//! No files of a crate import each other, be it directly or by way of further files. A file and
//! the files of its submodules may: the parent lists its children, and a child uses what the parent
//! declares.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The path of a module in its crate: `ops::unique`.
type Module = Vec<String>;

/// What a file says of its imports and definitions.
#[derive(Default)]
struct File {
    /// The paths that the file names, from the root of the crate.
    paths: Vec<Module>,
    /// The names that `use` declares, with what they stand for; `*` may stand for several modules.
    names: Vec<(String, Module)>,
    defined: BTreeSet<String>,
}

impl File {
    fn read(source: &str, module: &Module, files: &BTreeMap<Module, String>) -> Self {
        let mut file = File::default();
        let tokens = source.parse::<TokenStream>().expect("Rust source");
        file.walk(&tokens.into_iter().collect::<Vec<_>>(), module, files);
        file
    }

    /// Collects paths. `module` is the module of these tokens, which may stand inside its file.
    fn walk(&mut self, tokens: &[TokenTree], module: &Module, files: &BTreeMap<Module, String>) {
        let mut i = 0;
        while let Some(token) = tokens.get(i) {
            i += 1;
            match (token, tokens.get(i)) {
                (TokenTree::Punct(mark), Some(TokenTree::Group(group)))
                    if mark.as_char() == '#' && is_for_tests(&group.stream().to_string()) =>
                {
                    // The item ends with a semicolon or with a group in braces.
                    let ends = |token: &TokenTree| match token {
                        TokenTree::Punct(mark) => mark.as_char() == ';',
                        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                        _ => false,
                    };
                    let length = tokens[i..].iter().position(ends);
                    i += length.map_or(tokens.len(), |length| length + 1);
                }
                (TokenTree::Ident(word), Some(TokenTree::Ident(name))) => {
                    match &*word.to_string() {
                        "use" => {
                            let end = tokens[i..].iter().position(|token| token.to_string() == ";");
                            let end = end.map_or(tokens.len(), |length| i + length);
                            for (path, name) in tree(&tokens[i..end]) {
                                if let Some(path) = absolute(&path, module, files) {
                                    self.paths.push(path.clone());
                                    self.names.push((name, path));
                                }
                            }
                            i = end;
                        }
                        "mod" => {
                            if let Some(TokenTree::Group(body)) = tokens.get(i + 1) {
                                let inner = [&module[..], &[name.to_string()]].concat();
                                let body: Vec<_> = body.stream().into_iter().collect();
                                self.walk(&body, &inner, files);
                                i += 2;
                            }
                        }
                        "struct" | "enum" | "trait" | "fn" | "const" | "static" | "type"
                        | "union" => {
                            self.defined.insert(name.to_string());
                        }
                        _ => {}
                    }
                }
                (TokenTree::Ident(_), Some(TokenTree::Punct(_))) => {
                    let length = path_length(&tokens[i - 1..]);
                    if length > 1 {
                        let path = tree(&tokens[i - 1..i - 1 + length]).swap_remove(0).0;
                        self.paths.extend(absolute(&path, module, files));
                    }
                    i += length - 1;
                }
                (TokenTree::Group(group), _) => {
                    let inner: Vec<_> = group.stream().into_iter().collect();
                    self.walk(&inner, module, files);
                }
                _ => {}
            }
        }
    }
}

fn is_for_tests(attribute: &str) -> bool {
    attribute.starts_with("cfg") && attribute.contains("test") && !attribute.contains("not")
}

/// The number of tokens of `a::b::c` at the start of `tokens`.
fn path_length(tokens: &[TokenTree]) -> usize {
    let continues = |next: &[TokenTree]| {
        next[0].to_string() == ":"
            && next[1].to_string() == ":"
            && matches!(next[2], TokenTree::Ident(_))
    };
    let mut length = 1;
    while tokens.get(length..length + 3).is_some_and(continues) {
        length += 3;
    }
    length
}

/// The paths of the tree of a `use`, each with the name that it declares.
fn tree(tokens: &[TokenTree]) -> Vec<(Module, String)> {
    let mut path = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Ident(word) if word == "as" => {
                let name = tokens[i + 1].to_string();
                return vec![(path, name)];
            }
            TokenTree::Group(group) => {
                let inner: Vec<_> = group.stream().into_iter().collect();
                let parts = inner.split(|token| token.to_string() == ",");
                let all = parts.filter(|part| !part.is_empty()).flat_map(tree);
                let all = all.map(|(rest, name)| ([&path[..], &rest].concat(), name));
                // `a::{self}` is `a`.
                let whole = |(mut path, name): (Module, String)| {
                    if path.last().is_some_and(|last| last == "self") {
                        path.pop();
                    }
                    let name = if name == "self" { path.last().cloned() } else { Some(name) };
                    (path, name.unwrap_or_default())
                };
                return all.map(whole).collect();
            }
            TokenTree::Punct(mark) if mark.as_char() == ':' => {}
            word => path.push(word.to_string()),
        }
    }
    let name = path.last().cloned().unwrap_or_default();
    vec![(path, name)]
}

/// A path from the root of the crate, or `None` for a path into another crate.
fn absolute(path: &[String], module: &Module, files: &BTreeMap<Module, String>) -> Option<Module> {
    let supers = path.iter().take_while(|word| *word == "super").count();
    let child = || [&module[..], &path[..1]].concat();
    match &*path[0] {
        "crate" => Some(path[1..].to_vec()),
        "self" => Some([&module[..], &path[1..]].concat()),
        "super" => Some([&module[..module.len().checked_sub(supers)?], &path[supers..]].concat()),
        _ => files.contains_key(&child()).then(|| [&module[..], path].concat()),
    }
}

/// The file that defines what `path` names: `use` is followed to where a name comes from.
fn file_of(path: &[String], read: &BTreeMap<Module, File>) -> Module {
    let mut path = path.to_vec();
    for _ in 0..8 {
        let length = (0..=path.len()).rev().find(|&n| read.contains_key(&path[..n])).unwrap_or(0);
        let (module, rest) = path.split_at(length);
        let (Some(file), Some(name)) = (read.get(module), rest.first()) else { break };
        if file.defined.contains(name) {
            break;
        }
        let declared = file.names.iter().find(|(declared, _)| declared == name);
        let by_glob = || {
            let globs = file.names.iter().filter(|(name, _)| name == "*");
            let mut modules =
                globs.map(|(_, path)| (String::new(), path[..path.len() - 1].to_vec()));
            modules.find(|(_, module)| {
                let of = read.get(module);
                of.is_some_and(|file| {
                    file.defined.contains(name) || file.names.iter().any(|(other, _)| other == name)
                })
            })
        };
        path = match declared.cloned() {
            Some((_, source)) => [&source, &rest[1..]].concat(),
            None => match by_glob() {
                Some((_, module)) => [&module, rest].concat(),
                None => break,
            },
        };
    }
    let length = (0..=path.len()).rev().find(|&n| read.contains_key(&path[..n])).unwrap_or(0);
    path[..length].to_vec()
}

/// Each group of files that import each other, as `a, b`.
fn cycles(files: &BTreeMap<Module, String>) -> BTreeSet<String> {
    let read: BTreeMap<Module, File> = files
        .iter()
        .map(|(module, source)| (module.clone(), File::read(source, module, files)))
        .collect();
    let imports = |module: &Module| -> BTreeSet<Module> {
        let targets = read[module].paths.iter().map(|path| file_of(path, &read));
        targets.filter(|to| !to.starts_with(module) && !module.starts_with(to)).collect()
    };
    let edges: BTreeMap<&Module, BTreeSet<Module>> =
        read.keys().map(|module| (module, imports(module))).collect();
    let reached = |module: &Module| {
        let (mut reached, mut next) = (BTreeSet::new(), edges[module].clone());
        while let Some(to) = next.pop_first() {
            next.extend(edges[&to].iter().filter(|far| !reached.contains(*far)).cloned());
            reached.insert(to);
        }
        reached
    };
    let reached: BTreeMap<&Module, BTreeSet<Module>> =
        read.keys().map(|module| (module, reached(module))).collect();
    let groups = reached.iter().filter(|(module, to)| to.contains(**module));
    let groups = groups.map(|(module, to)| {
        let group = to.iter().filter(|other| reached[other].contains(*module));
        group.map(|module| module.join("::")).collect::<Vec<_>>().join(", ")
    });
    groups.collect()
}

/// The modules of a crate by its `src` folder; programs in `src/bin` are left out.
fn modules(src: &Path) -> BTreeMap<Module, String> {
    let mut files = BTreeMap::new();
    for entry in walkdir::WalkDir::new(src).sort_by_file_name() {
        let entry = entry.unwrap();
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let inner = path.strip_prefix(src).unwrap().with_extension("");
        let mut module: Module =
            inner.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
        if module[0] == "bin" || module == ["main"] && src.join("lib.rs").exists() {
            continue;
        }
        if module.last().is_some_and(|name| name == "mod")
            || module == ["lib"]
            || module == ["main"]
        {
            module.pop();
        }
        files.insert(module, std::fs::read_to_string(path).unwrap());
    }
    files
}

#[test]
fn no_files_import_each_other() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut folders =
        vec![root.to_owned(), root.join("benches"), root.join("xtask"), root.join("python")];
    for parent in ["crates", "examples"] {
        let entries = std::fs::read_dir(root.join(parent)).unwrap();
        folders.extend(entries.map(|entry| entry.unwrap().path()));
    }
    let mut found = Vec::new();
    let mut crates = 0;
    for src in folders.iter().map(|folder| folder.join("src")).filter(|src| src.is_dir()) {
        crates += 1;
        let of_crate = cycles(&modules(&src));
        found.extend(of_crate.iter().map(|group| format!("{}: {group}", src.display())));
    }
    assert!(crates > 12, "{crates} crates");
    assert!(found.is_empty(), "files that import each other:\n{}", found.join("\n"));
}

fn made(files: &[(&str, &str)]) -> BTreeSet<String> {
    let module = |path: &str| if path.is_empty() { Vec::new() } else { vec![path.to_owned()] };
    cycles(&files.iter().map(|(path, text)| (module(path), text.to_string())).collect())
}

#[test]
fn cycles_are_found() {
    let found = |a: &str, b: &str| made(&[("", "mod a; mod b; pub use b::B;"), ("a", a), ("b", b)]);
    let both = BTreeSet::from(["a, b".to_owned()]);
    assert_eq!(found("use crate::b::B;", "use super::a::{self, A};"), both);
    assert_eq!(found("use crate::B;", "fn f() { g(vec![crate::a::A]) }"), both, "by a re-export");
    assert_eq!(found("mod c { use super::super::b::B; }", "use super::a;"), both, "inside a file");
    assert!(found("use crate::b::B;", "struct B;").is_empty(), "one direction");
    assert!(found("use crate::b::B;", "#[cfg(test)] mod tests { use crate::a::A; }").is_empty());
    let around = [("a", "use super::b::B;"), ("b", "use super::c::C;"), ("c", "use super::a::A;")];
    let around = made(&[&[("", "")], &around[..]].concat());
    assert_eq!(around, BTreeSet::from(["a, b, c".to_owned()]));
    let parent = made(&[("", "mod a; use a::A; struct R;"), ("a", "use super::R;")]);
    assert!(parent.is_empty(), "a parent and its child");
}
