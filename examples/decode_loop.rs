//! A decode loop that drafts from its own text: `cargo run --example decode_loop [DEVICE]`.
//!
//! Each step asks [`prompt_lookup`](spec::ops::prompt_lookup) what followed the last
//! tokens where they occurred before, runs the model once on the last token and those
//! drafts, and keeps as many of them as the model would have chosen itself, and the
//! token that it chooses next. So the text is the model's own, in fewer runs of it. Here
//! it chooses greedily; where tokens are sampled, `sample_logits` chooses, and `tree_verify`
//! follows what was chosen.

use spec::ops::prompt_lookup::{Buffers, PromptLookup};
use spec::{DType, Handle, Result, TensorDesc};

/// Stands for a language model: it has an answer, a token a byte, and knows of any text
/// that begins like it what comes next. A run takes several tokens and says for each
/// what follows, as one forward pass of a transformer does.
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

/// Decodes until the model ends the text, or until it has `most` tokens: the text, and
/// how often the model was run.
fn decode(
    handle: &Handle,
    model: &Model<'_>,
    most: usize,
    max_draft: usize,
) -> Result<(String, usize)> {
    // Created once: the row has room for the longest text. One request here; an engine
    // has a row for each.
    let params = PromptLookup::default().max_draft(max_draft);
    let flags = Some(TensorDesc::new(DType::U32, [1]));
    let mut tensors = params.tensors(DType::I32, 1, most);
    tensors.flags = flags;
    let lookup = handle.create(&params, &tensors)?;
    let mut workspace = lookup.workspace(handle)?;
    let (mut tokens, mut lengths) = (handle.allocate::<i32>(most)?, handle.allocate::<i32>(1)?);
    let (mut drafts, mut counts) = (handle.allocate(max_draft)?, handle.allocate::<i32>(1)?);
    let mut flags = handle.upload(&[0u32])?;

    // The prompt is there from the first step on, which drafts from it alone.
    let mut text: Vec<i32> = model.prompt.bytes().map(i32::from).collect();
    let mut runs = 0;
    while text.len() < most && text.last() != Some(&END) {
        // Every token so far, the last one included: its pattern is what is looked up.
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

/// To say again with a change what the prompt says is what drafts are good at.
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

    /// Drafts change how often the model is run, and nothing else.
    #[test]
    fn drafts_save_runs_and_leave_the_text() {
        let cpu = Handle::cpu().unwrap();
        let (plain, runs) = decode(&cpu, &MODEL, 512, 0).unwrap();
        assert_eq!((&*plain, runs), (MODEL.answer, MODEL.answer.len() + 1));
        let (text, fewer) = decode(&cpu, &MODEL, 512, 8).unwrap();
        assert_eq!(text, plain);
        assert!(fewer * 3 < runs, "{fewer} runs instead of {runs}");
    }

    /// A text that is full ends where it is full.
    #[test]
    fn a_row_is_not_overrun() {
        let most = MODEL.prompt.len() + 20;
        let (text, _) = decode(&Handle::cpu().unwrap(), &MODEL, most, 8).unwrap();
        assert_eq!(text, MODEL.answer[..20]);
    }
}
