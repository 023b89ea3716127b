//! The prompt: reading it, and its tokens.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::{Error, Result};

/// What is decoded from when no file is named.
const SHIPPED: &str = include_str!("../../../../texts/alice.txt");

/// The largest prompt file that is read, in bytes: 16 MiB.
pub const MAX_PROMPT: u64 = 16 << 20;

/// A text as tokens, over the vocabulary of the tokens that occur in it.
///
/// A token is a word with the blank before it, or a single other character. A model that counts
/// tokens needs no smaller pieces than words, since every word that it can emit is in the prompt.
pub struct Text {
    /// Tokens as indices into the vocabulary.
    pub tokens: Vec<i32>,
    /// The text of each token, in the order of their first occurrence.
    vocabulary: Vec<String>,
}

impl Text {
    /// Splits a text into tokens.
    pub fn tokenize(text: &str) -> Text {
        let mut index = HashMap::new();
        let mut vocabulary = Vec::new();
        let mut tokens = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (token, behind) = rest.split_at(token_len(rest));
            rest = behind;
            tokens.push(*index.entry(token).or_insert_with(|| {
                vocabulary.push(token.to_owned());
                vocabulary.len() as i32 - 1
            }));
        }
        Text { tokens, vocabulary }
    }

    /// How many distinct tokens occur.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary.len()
    }

    /// Tokens as text.
    pub fn detokenize(&self, tokens: &[i32]) -> String {
        tokens.iter().map(|token| self.vocabulary[*token as usize].as_str()).collect()
    }
}

/// Bytes of the token that a text, which is not empty, begins with.
fn token_len(text: &str) -> usize {
    let word = text.strip_prefix(' ').unwrap_or(text);
    let letters = word.find(|c: char| !c.is_alphanumeric()).unwrap_or(word.len());
    match letters {
        // A single character, which may be the blank itself.
        0 => text.chars().next().map_or(0, char::len_utf8),
        letters => text.len() - word.len() + letters,
    }
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

#[cfg(test)]
mod unit_tests {
    use super::Text;

    #[test]
    fn tokens_are_words_and_lose_nothing() {
        let text = "The cat,  the cat\nes war 7 Uhr. ひらがな!";
        let split = Text::tokenize(text);
        let words: Vec<_> = split.tokens.iter().map(|&token| split.detokenize(&[token])).collect();
        let expected = [
            "The",
            " cat",
            ",",
            " ",
            " the",
            " cat",
            "\n",
            "es",
            " war",
            " 7",
            " Uhr",
            ".",
            " ひらがな",
            "!",
        ];
        assert_eq!(words, expected);
        assert_eq!(split.detokenize(&split.tokens), text);
        assert_eq!(split.vocabulary(), expected.len() - 1);
        assert!(Text::tokenize("").tokens.is_empty());
    }
}
