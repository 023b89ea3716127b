//! The tokenizer and the chat template of a model's file.

use anyhow::{Context, anyhow};
use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::quantized::tokenizer::TokenizerFromGguf;
use minijinja::{Environment, context};
use tokenizers::Tokenizer;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;

use crate::Result;

/// A model's tokenizer and chat template.
pub struct Text {
    tokenizer: Tokenizer,
    template: Option<String>,
    /// The token that ends an answer.
    pub end: Option<u32>,
}

impl Text {
    /// Reads the metadata of a file.
    ///
    /// # Errors
    /// If the metadata have no tokenizer of byte-level BPE.
    pub fn new(content: &Content) -> Result<Self> {
        let mut tokenizer = Tokenizer::from_gguf(content).context("the file's tokenizer")?;
        let string = |key| match content.metadata.get(key) {
            Some(Value::String(value)) => Some(value.clone()),
            _ => None,
        };
        // If candle does not know how a model splits text, candle splits as GPT-2 does and adds
        // a space before the text. The models of this family add no space and split numbers
        // into single digits.
        if string("tokenizer.ggml.pre").as_deref() == Some("smollm") {
            tokenizer.with_pre_tokenizer(Some(PreTokenizerWrapper::from(Sequence::new(vec![
                Digits::new(true).into(),
                ByteLevel::new(false, true, true).into(),
            ]))));
        }
        let end = content.metadata.get("tokenizer.ggml.eos_token_id");
        let end = end.map(Value::to_u32).transpose()?;
        Ok(Text { tokenizer, template: string("tokenizer.chat_template"), end })
    }

    /// The prompt for a user's message, made by the file's chat template.
    ///
    /// # Errors
    /// If the file has no chat template, or if the template is wrong.
    pub fn chat(&self, said: &str) -> Result<String> {
        let template = self.template.as_deref().context("the file has no chat template")?;
        let messages = [context! { role => "user", content => said }];
        let context = context! { messages, add_generation_prompt => true };
        Ok(Environment::new().render_str(template, context)?)
    }

    /// The tokens of a text.
    ///
    /// # Errors
    /// The errors of the tokenizer.
    pub fn tokens(&self, text: &str) -> Result<Vec<u32>> {
        let encoded = self.tokenizer.encode(text, true).map_err(|error| anyhow!(error))?;
        Ok(encoded.get_ids().to_vec())
    }

    /// The text of tokens, without special tokens.
    ///
    /// # Errors
    /// The errors of the tokenizer.
    pub fn text(&self, tokens: &[u32]) -> Result<String> {
        self.tokenizer.decode(tokens, true).map_err(|error| anyhow!(error))
    }

    /// Turns tokens into text one by one; `show` only gets whole characters.
    pub fn stream<'a>(
        &'a self,
        mut show: impl FnMut(&str) + 'a,
    ) -> impl FnMut(&[u32]) -> Result<()> + 'a {
        let mut stream = self.tokenizer.decode_stream(true);
        move |tokens| {
            for token in tokens {
                if let Some(piece) = stream.step(*token).map_err(|error| anyhow!(error))? {
                    show(&piece);
                }
            }
            Ok(())
        }
    }
}
