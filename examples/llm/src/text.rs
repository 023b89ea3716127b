//! Text and tokens, as the model's file has them.

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

/// A model's tokens and how it is spoken to.
pub struct Text {
    tokenizer: Tokenizer,
    template: Option<String>,
    /// The token that ends an answer.
    pub end: Option<u32>,
}

impl Text {
    /// From the metadata of a file.
    ///
    /// # Errors
    /// Where there is no byte-level BPE among them.
    pub fn new(content: &Content) -> Result<Self> {
        let mut tokenizer = Tokenizer::from_gguf(content).context("the file's tokenizer")?;
        let string = |key| match content.metadata.get(key) {
            Some(Value::String(value)) => Some(value.clone()),
            _ => None,
        };
        // What candle knows no splitting for it splits as GPT-2 does behind a blank. This
        // family has no blank, and a token a digit.
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

    /// What the user says as the model was taught to hear it, by the file's template.
    ///
    /// # Errors
    /// Where the file has none, or it is wrong.
    pub fn chat(&self, said: &str) -> Result<String> {
        let template = self.template.as_deref().context("the file has no chat template")?;
        let messages = [context! { role => "user", content => said }];
        let context = context! { messages, add_generation_prompt => true };
        Ok(Environment::new().render_str(template, context)?)
    }

    /// The tokens of a text.
    ///
    /// # Errors
    /// The tokenizer's.
    pub fn tokens(&self, text: &str) -> Result<Vec<u32>> {
        let encoded = self.tokenizer.encode(text, true).map_err(|error| anyhow!(error))?;
        Ok(encoded.get_ids().to_vec())
    }

    /// The text of tokens, without those that steer.
    ///
    /// # Errors
    /// The tokenizer's.
    pub fn text(&self, tokens: &[u32]) -> Result<String> {
        self.tokenizer.decode(tokens, true).map_err(|error| anyhow!(error))
    }

    /// Turns tokens into text as they come: `show` gets whole characters.
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
