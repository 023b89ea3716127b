//! The prompt: reading it, and its tokens.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use tiktoken_rs::{CoreBPE, Rank};

use crate::output::Progress;
use crate::{Error, Result};

/// What is decoded from when no file is named.
const SHIPPED: &str = include_str!("../../../../texts/alice.txt");

/// The largest prompt file that is read, in bytes: 16 MiB.
pub const MAX_PROMPT: u64 = 16 << 20;

/// The tokenizer gets pieces of this many bytes at most: its regular
/// expressions backtrack over runs of blanks, and give up on very long ones.
const PIECE: usize = 64 << 10;

/// A text's tokens over the vocabulary of those tokens that occur in it.
pub struct Text {
    /// Tokens as indices into the vocabulary.
    pub tokens: Vec<u32>,
    /// The tokenizer's id of each token of the vocabulary, ascending.
    vocabulary: Vec<Rank>,
    bpe: CoreBPE,
}

impl Text {
    /// Tokenizes with cl100k.
    pub fn tokenize(text: &str) -> Result<Text> {
        let bpe = tiktoken_rs::cl100k_base()
            .map_err(|error| Error::Message(format!("the tokenizer does not load: {error}")))?;
        let mut progress = Progress::new("bytes tokenized", Some(text.len()));
        let mut ids = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(piece_len(rest));
            ids.extend(bpe.encode_ordinary(piece));
            rest = behind;
            progress.set(text.len() - rest.len());
        }
        let mut vocabulary = ids.clone();
        vocabulary.sort_unstable();
        vocabulary.dedup();
        let index: HashMap<Rank, u32> =
            vocabulary.iter().zip(0..).map(|(id, index)| (*id, index)).collect();
        let tokens = ids.iter().map(|id| index[id]).collect();
        Ok(Text { tokens, vocabulary, bpe })
    }

    /// How many distinct tokens occur.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary.len()
    }

    /// The tokenizer's ids of tokens of the vocabulary.
    pub fn ids(&self, tokens: &[u32]) -> Vec<Rank> {
        tokens.iter().map(|token| self.vocabulary[*token as usize]).collect()
    }

    /// Tokens as text; a character that is cut in half becomes U+FFFD.
    pub fn detokenize(&self, tokens: &[u32]) -> String {
        // The ids came from this tokenizer, which knows them all.
        let bytes = self.bpe.decode_bytes(&self.ids(tokens)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// How much of a text to tokenize at once: up to a line's end if there is one.
fn piece_len(text: &str) -> usize {
    if text.len() <= PIECE {
        return text.len();
    }
    let end = (0..=PIECE).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(PIECE);
    text[..end].rfind('\n').map_or(end, |newline| newline + 1)
}

/// What an error calls the prompt.
pub fn name(path: Option<&Path>) -> String {
    match path {
        None => "the shipped prompt".to_owned(),
        Some(path) if is_stdin(path) => "prompt from stdin".to_owned(),
        Some(path) => format!("prompt {}", path.display()),
    }
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

/// Reads the prompt, without the newline that ends a text file.
pub fn read(path: Option<&Path>) -> Result<String> {
    let text = match path {
        None => Ok(SHIPPED.to_owned()),
        Some(path) if is_stdin(path) => read_all(std::io::stdin().lock()),
        Some(path) => read_file(path),
    };
    let text = text.map_err(|what| Error::Message(format!("{}: {what}", name(path))))?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    Ok(line.strip_suffix('\r').unwrap_or(line).to_owned())
}

fn read_file(path: &Path) -> Result<String, String> {
    let file = File::open(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => "there is no such file".to_owned(),
        _ => error.to_string(),
    })?;
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if metadata.is_dir() {
        return Err("is a directory, expected a text file".to_owned());
    }
    if metadata.len() > MAX_PROMPT {
        return Err(too_long(metadata.len()));
    }
    // Not every file says how long it is.
    read_all(file)
}

fn too_long(bytes: u64) -> String {
    format!("is {bytes} bytes long or more, expected at most {MAX_PROMPT} (16 MiB)")
}

fn read_all(file: impl Read) -> Result<String, String> {
    let mut bytes = Vec::new();
    file.take(MAX_PROMPT + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > MAX_PROMPT {
        return Err(too_long(bytes.len() as u64));
    }
    if bytes.is_empty() {
        return Err("is empty, expected a text to count tokens in".to_owned());
    }
    String::from_utf8(bytes).map_err(|error| {
        format!("is not UTF-8 text: byte {} is wrong", error.utf8_error().valid_up_to())
    })
}
