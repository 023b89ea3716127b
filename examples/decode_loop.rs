//! A decode loop that drafts from its own text: `cargo run --example decode_loop [DEVICE]`.
//!
//! Each step asks [`prompt_lookup`](spec::ops::prompt_lookup) for drafts: the tokens that
//! followed an earlier occurrence of the last tokens. The step then runs the model once on
//! the last token and the drafts, keeps the drafts that the model would have chosen itself,
//! and appends the model's next token. So the text is the model's own, with fewer runs of
//! the model. In this example the model chooses greedily. To sample tokens instead,
//! `sample_logits` chooses a token after each draft, and `tree_verify` follows the chosen
//! tokens.

use spec::ops::prompt_lookup::{Buffers, PromptLookup};
use spec::{DType, Handle, Result, TensorDesc};

/// Stands for a language model. The model has a fixed answer, with one token per byte, and
/// knows the next token of any text that begins like prompt and answer. A run takes several
/// tokens and returns the next token after each, like one forward pass of a transformer.
struct Model<'a> {
    prompt: &'a str,
    answer: &'a str,
}

impl Model<'_> {
    /// What the model chooses after the last token of `text` and after each draft.
    fn run(&self, text: &[i32], drafts: &[i32]) -> Vec<i32> {
        let known = [self.prompt, self.answer].concat();
        let mut text = text.to_vec();
        let choose = |text: &[i32]| {
            let is_known = text.iter().zip(known.bytes()).all(|(&a, b)| a == i32::from(b));
            known.as_bytes().get(text.len()).copied().filter(|_| is_known).map_or(END, i32::from)
        };
        let mut chosen = vec![choose(&text)];
        for &draft in drafts {
            text.push(draft);
            chosen.push(choose(&text));
        }
        chosen
    }
}

/// The token that ends a text.
const END: i32 = 0;

/// Decodes until the model ends the text, or until the text has `most` tokens. Returns the
/// answer, and the number of runs of the model.
fn decode(
    handle: &Handle,
    model: &Model<'_>,
    most: usize,
    max_draft: usize,
) -> Result<(String, usize)> {
    // The operator is created once, with room for the longest text. There is one request
    // here; an engine has one row per request.
    let params = PromptLookup::default().max_draft(max_draft);
    let flags = Some(TensorDesc::new(DType::U32, [1]));
    let mut tensors = params.tensors(DType::I32, 1, most);
    tensors.flags = flags;
    let lookup = handle.create(&params, &tensors)?;
    let mut workspace = lookup.workspace(handle)?;
    let (mut tokens, mut lengths) = (handle.allocate::<i32>(most)?, handle.allocate::<i32>(1)?);
    let (mut drafts, mut counts) = (handle.allocate(max_draft)?, handle.allocate::<i32>(1)?);
    let mut flags = handle.upload(&[0u32])?;

    // The text starts as the prompt, so the first step drafts from the prompt alone.
    let mut text: Vec<i32> = model.prompt.bytes().map(i32::from).collect();
    let mut runs = 0;
    while text.len() < most && text.last() != Some(&END) {
        // All tokens so far. The pattern to look up is the end of the text, so the last
        // token is included.
        tokens.write(&text)?;
        lengths.write(&[text.len() as i32])?;
        lookup.call(
            &mut workspace,
            Buffers::new(tokens.view(), lengths.view(), drafts.view_mut(), counts.view_mut())
                .flags(flags.view_mut()),
        )?;
        let count = counts.to_vec()?[0] as usize;
        let drafted = &drafts.to_vec()?[..count.min(most - text.len() - 1)];

        // One run of the model, however many drafts there are.
        let chosen = model.run(&text, drafted);
        runs += 1;
        let agreed =
            drafted.iter().zip(&chosen).take_while(|(draft, token)| draft == token).count();
        text.extend(&chosen[..=agreed]);
    }
    assert_eq!(flags.to_vec()?, [0], "no length was beyond its row");
    let answer = text[model.prompt.len()..].iter().filter(|&&token| token != END);
    Ok((answer.map(|&token| token as u8 as char).collect(), runs))
}

/// The answer repeats the prompt with a small change: a task for which drafting works well.
const MODEL: Model<'_> = Model {
    prompt: "fn area(width: f32, height: f32) -> f32 { width * height }\nThe same in f64:\n",
    answer: "fn area(width: f64, height: f64) -> f64 { width * height }\n",
};

fn main() -> Result<()> {
    let handle: Handle = std::env::args().nth(1).as_deref().unwrap_or("auto").parse()?;
    let (text, runs) = decode(&handle, &MODEL, 512, 8)?;
    print!("{text}");
    println!("{} tokens in {runs} runs of the model, on {}", text.len() + 1, handle.device());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Drafts change only the number of runs of the model.
    #[test]
    fn drafts_save_runs_and_leave_the_text() {
        let cpu = Handle::cpu().unwrap();
        let (plain, runs) = decode(&cpu, &MODEL, 512, 0).unwrap();
        assert_eq!((&*plain, runs), (MODEL.answer, MODEL.answer.len() + 1));
        let (text, fewer) = decode(&cpu, &MODEL, 512, 8).unwrap();
        assert_eq!(text, plain);
        assert!(fewer * 3 < runs, "{fewer} runs instead of {runs}");
    }

    /// Decoding ends when the text has the largest number of tokens.
    #[test]
    fn a_row_is_not_overrun() {
        let most = MODEL.prompt.len() + 20;
        let (text, _) = decode(&Handle::cpu().unwrap(), &MODEL, most, 8).unwrap();
        assert_eq!(text, MODEL.answer[..20]);
    }
}
