//! Tests with a small model of random weights, in a GGUF file that the test writes.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use spec::{Corpus, Handle};
use spec_llm::agreement;
use spec_llm::batch::{self, Batch, Sharing};
use spec_llm::drafting::for_corpus;
use spec_llm::{Decoded, Drafter, Llama, Request, Sampling, Text, Weights, decode};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

const DIM: usize = 64;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = DIM / HEADS;
// candle asserts that rows of Q4_1 have an even number of blocks of 32.
const HIDDEN: usize = 128;
const LAYERS: usize = 2;
const EPSILON: f32 = 1e-5;
const BASE: f32 = 10_000.0;
const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n\
                        {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// A vocabulary of all bytes in GPT-2's notation, and of two merges.
fn vocabulary() -> Vec<String> {
    let mut bytes: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    bytes.sort_unstable();
    let special = SPECIAL.into_iter().map(str::to_owned);
    let merged = ["he", "Ġhe"].map(str::to_owned);
    special.chain(bytes.iter().map(char::to_string)).chain(merged).collect()
}

/// A generator of normally distributed numbers.
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 40) as f32 / (1 << 24) as f32
    }

    fn below(&mut self, below: u32) -> u32 {
        (self.unit() * below as f32) as u32
    }

    fn tensor(&mut self, shape: &[usize], spread: f32, around: f32) -> Tensor {
        let numbers: Vec<f32> = (0..shape.iter().product())
            .map(|_| around + spread * ((0..12).map(|_| self.unit()).sum::<f32>() - 6.0))
            .collect();
        Tensor::from_vec(numbers, shape, &Device::Cpu).unwrap()
    }
}

/// Writes a GGUF file with random weights.
fn write(path: &Path, seed: u64, dtype: GgmlDType) {
    let vocabulary = vocabulary();
    let mut random = Random(seed);
    let mut tensors: Vec<(String, QTensor)> = Vec::new();
    let mut matrix = |name: &str, out: usize, into: usize| {
        let dense = random.tensor(&[out, into], 1.5 / (into as f32).sqrt(), 0.0);
        tensors.push((format!("{name}.weight"), QTensor::quantize(&dense, dtype).unwrap()));
    };
    matrix("token_embd", vocabulary.len(), DIM);
    for layer in 0..LAYERS {
        let name = |part: &str| format!("blk.{layer}.{part}");
        matrix(&name("attn_q"), DIM, DIM);
        matrix(&name("attn_k"), KV_HEADS * HEAD_DIM, DIM);
        matrix(&name("attn_v"), KV_HEADS * HEAD_DIM, DIM);
        matrix(&name("attn_output"), DIM, DIM);
        matrix(&name("ffn_gate"), HIDDEN, DIM);
        matrix(&name("ffn_up"), HIDDEN, DIM);
        matrix(&name("ffn_down"), DIM, HIDDEN);
    }
    let norms = (0..LAYERS).flat_map(|layer| {
        ["attn_norm", "ffn_norm"].map(|part| format!("blk.{layer}.{part}.weight"))
    });
    for name in norms.chain(["output_norm.weight".to_owned()]) {
        let norm = QTensor::quantize(&random.tensor(&[DIM], 0.1, 1.0), GgmlDType::F32);
        tensors.push((name, norm.unwrap()));
    }

    let number = |value: usize| Value::U32(value as u32);
    let string = |value: &str| Value::String(value.to_owned());
    let strings = |values: &[String]| Value::Array(values.iter().map(|v| string(v)).collect());
    let types = (0..vocabulary.len()).map(|id| Value::I32(if id < SPECIAL.len() { 3 } else { 1 }));
    let metadata = [
        ("general.architecture", string("llama")),
        ("llama.block_count", number(LAYERS)),
        ("llama.context_length", number(4096)),
        ("llama.embedding_length", number(DIM)),
        ("llama.feed_forward_length", number(HIDDEN)),
        ("llama.attention.head_count", number(HEADS)),
        ("llama.attention.head_count_kv", number(KV_HEADS)),
        ("llama.rope.dimension_count", number(HEAD_DIM)),
        ("llama.rope.freq_base", Value::F32(BASE)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(EPSILON)),
        ("tokenizer.ggml.model", string("gpt2")),
        ("tokenizer.ggml.pre", string("smollm")),
        ("tokenizer.ggml.tokens", strings(&vocabulary)),
        ("tokenizer.ggml.token_type", Value::Array(types.collect())),
        ("tokenizer.ggml.merges", strings(&["h e", "Ġ he"].map(str::to_owned))),
        ("tokenizer.ggml.eos_token_id", number(2)),
        ("tokenizer.chat_template", string(TEMPLATE)),
    ];
    let metadata: Vec<(&str, &Value)> = metadata.iter().map(|(key, value)| (*key, value)).collect();
    let tensors: Vec<(&str, &QTensor)> =
        tensors.iter().map(|(name, tensor)| (&**name, tensor)).collect();
    let mut file = BufWriter::new(File::create(path).unwrap());
    gguf_file::write(&mut file, &metadata, &tensors).unwrap();
}

/// The path of a new file with a unique name.
fn file() -> PathBuf {
    static FILES: AtomicUsize = AtomicUsize::new(0);
    let (process, number) = (std::process::id(), FILES.fetch_add(1, Ordering::Relaxed));
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tiny-{process}-{number}.gguf"))
}

/// A model of random weights, with room for 1024 tokens.
fn model(seed: u64, dtype: GgmlDType, weights: Weights) -> (Llama, Text) {
    let path = file();
    write(&path, seed, dtype);
    let (model, content) = Llama::open(&path, weights, 1024).unwrap();
    std::fs::remove_file(&path).unwrap();
    (model, Text::new(&content).unwrap())
}

fn logits(model: &mut Llama, tokens: &[u32]) -> Vec<Vec<f32>> {
    let vocab = model.vocab();
    let rows = model.run(tokens).unwrap();
    rows.with(|logits| Ok(logits.chunks(vocab).map(<[f32]>::to_vec).collect())).unwrap()
}

fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    rows.iter().map(|row| row.iter().map(|logit| logit.to_bits()).collect()).collect()
}

const TYPES: [(GgmlDType, Weights); 4] = [
    (GgmlDType::Q8_0, Weights::Auto),
    (GgmlDType::Q4_0, Weights::Auto),
    (GgmlDType::Q4_1, Weights::Auto),
    (GgmlDType::Q4_1, Weights::File),
];

/// The logits of a row have the same bits alone and among other rows, also after rejected rows.
#[test]
fn rows_do_not_know_of_each_other() {
    rayon::scope(|_| {
        for (case, &(dtype, weights)) in TYPES.iter().cycle().take(24).enumerate() {
            let random = &mut Random(case as u64);
            let (mut model, _) = model(7, dtype, weights);
            let length = 1 + random.below(80);
            let tokens: Vec<u32> = (0..length).map(|_| random.below(261)).collect();
            let alone: Vec<_> =
                tokens.iter().flat_map(|&token| logits(&mut model, &[token])).collect();
            model.truncate(0);
            let (mut together, mut rest) = (Vec::new(), &tokens[..]);
            while !rest.is_empty() {
                let count = 1 + random.below(23) as usize;
                let (rows, behind) = rest.split_at(count.min(rest.len()));
                let rejected: Vec<u32> = (0..random.below(4)).map(|_| random.below(261)).collect();
                let all = logits(&mut model, &[rows, &rejected].concat());
                together.extend_from_slice(&all[..rows.len()]);
                model.truncate(model.len() - rejected.len());
                rest = behind;
            }
            assert_eq!(bits(&alone), bits(&together), "case {case}, {weights:?}");
        }
    });
}

/// Each row of a tree has the bits that it has at the end of its path alone, and a path that is
/// kept is the text that follows.
#[test]
fn rows_of_a_tree_know_their_path_alone() {
    rayon::scope(|_| {
        for case in 0..12 {
            let random = &mut Random(case);
            let (mut model, _) = model(7, GgmlDType::Q8_0, Weights::Auto);
            if !model.has_trees() {
                eprintln!("NOT RUN: this processor has no AVX2");
                return;
            }
            let text: Vec<u32> = (0..1 + random.below(40)).map(|_| random.below(261)).collect();
            let rows = 2 + random.below(15) as usize;
            let tokens: Vec<u32> = (0..rows).map(|_| random.below(261)).collect();
            let parents: Vec<usize> =
                (1..rows as u32).map(|row| random.below(row) as usize).collect();
            let path = |mut row: usize| {
                let mut path = vec![row];
                while row > 0 {
                    row = parents[row - 1];
                    path.insert(0, row);
                }
                path
            };
            model.read_prompt(&text).unwrap();
            let vocab = model.vocab();
            let split = |logits: &[f32]| Ok(logits.chunks(vocab).map(<[f32]>::to_vec).collect());
            let all: Vec<Vec<f32>> =
                model.run_tree(&tokens, &parents).unwrap().with(split).unwrap();
            let last = random.below(rows as u32) as usize;
            model.keep(text.len(), &path(last)).unwrap();
            let behind = logits(&mut model, &[5]);
            for row in 0..rows {
                let alone: Vec<u32> = path(row).iter().map(|&row| tokens[row]).collect();
                model.truncate(text.len());
                let expected = logits(&mut model, &alone);
                assert_eq!(bits(&all[row..=row]), bits(&expected[alone.len() - 1..]), "row {row}");
                if row == last {
                    assert_eq!(bits(&behind), bits(&logits(&mut model, &[5])), "behind {row}");
                }
            }
            assert!(model.run_tree(&[1, 2, 3], &[0, 2]).is_err(), "a row that follows itself");
        }
    });
}

/// The forward pass of the same file in plain loops, one token at a time, in f64.
mod plain {
    use super::*;

    fn product(matrix: &[Vec<f64>], x: &[f64]) -> Vec<f64> {
        matrix.iter().map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum()).collect()
    }

    fn norm(x: &[f64], scale: &[f64]) -> Vec<f64> {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let by = (mean + f64::from(EPSILON)).sqrt();
        x.iter().zip(scale).map(|(x, scale)| x / by * scale).collect()
    }

    fn rotate(x: &mut [f64], position: usize) {
        for head in x.chunks_mut(HEAD_DIM) {
            for i in 0..HEAD_DIM / 2 {
                let frequency = f64::from(BASE).powf(-2.0 * i as f64 / HEAD_DIM as f64);
                let (sin, cos) = (position as f64 * frequency).sin_cos();
                let (a, b) = (head[2 * i], head[2 * i + 1]);
                (head[2 * i], head[2 * i + 1]) = (a * cos - b * sin, a * sin + b * cos);
            }
        }
    }

    /// The logits after each token.
    pub fn logits(path: &Path, tokens: &[u32]) -> Vec<Vec<f64>> {
        let mut file = File::open(path).unwrap();
        let content = gguf_file::Content::read(&mut file).unwrap();
        let mut dense = |name: &str| -> Tensor {
            let stored = content.tensor(&mut file, &format!("{name}.weight"), &Device::Cpu);
            stored.unwrap().dequantize(&Device::Cpu).unwrap()
        };
        let wide = |row: Vec<f32>| row.into_iter().map(f64::from).collect::<Vec<_>>();
        let mut matrix = |name: &str| -> Vec<Vec<f64>> {
            dense(name).to_vec2::<f32>().unwrap().into_iter().map(wide).collect()
        };
        let embedding = matrix("token_embd");
        let parts = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
        let layers: Vec<[Vec<Vec<f64>>; 7]> = (0..LAYERS)
            .map(|layer| parts.map(|part| matrix(&format!("blk.{layer}.{part}"))))
            .collect();
        let mut vector = |name: &str| wide(dense(name).to_vec1::<f32>().unwrap());
        let norms: Vec<[Vec<f64>; 2]> = (0..LAYERS)
            .map(|layer| {
                ["attn_norm", "ffn_norm"].map(|part| vector(&format!("blk.{layer}.{part}")))
            })
            .collect();
        let last_norm = vector("output_norm");

        let mut caches = vec![(Vec::new(), Vec::new()); LAYERS];
        let mut all = Vec::new();
        for (position, &token) in tokens.iter().enumerate() {
            let mut x = embedding[token as usize].clone();
            for ((layer, norms), (keys, values)) in layers.iter().zip(&norms).zip(&mut caches) {
                let [q, k, v, output, gate, up, down] = layer;
                let input = norm(&x, &norms[0]);
                let (mut query, mut key) = (product(q, &input), product(k, &input));
                rotate(&mut query, position);
                rotate(&mut key, position);
                keys.push(key);
                values.push(product(v, &input));
                let mut seen = vec![0.0; DIM];
                for head in 0..HEADS {
                    let (at, shared) = (head * HEAD_DIM, head * KV_HEADS / HEADS * HEAD_DIM);
                    let query = &query[at..at + HEAD_DIM];
                    let score = |key: &Vec<f64>| {
                        let key = &key[shared..shared + HEAD_DIM];
                        let dot: f64 = query.iter().zip(key).map(|(a, b)| a * b).sum();
                        (dot / (HEAD_DIM as f64).sqrt()).exp()
                    };
                    let weights: Vec<f64> = keys.iter().map(score).collect();
                    let total: f64 = weights.iter().sum();
                    for (weight, value) in weights.iter().zip(values.iter()) {
                        for i in 0..HEAD_DIM {
                            seen[at + i] += weight / total * value[shared + i];
                        }
                    }
                }
                let add = |x: &mut Vec<f64>, more: Vec<f64>| {
                    x.iter_mut().zip(more).for_each(|(x, more)| *x += more);
                };
                add(&mut x, product(output, &seen));
                let input = norm(&x, &norms[1]);
                let gated = product(gate, &input).into_iter().zip(product(up, &input));
                let gated: Vec<f64> = gated.map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
                add(&mut x, product(down, &gated));
            }
            all.push(product(&embedding, &norm(&x, &last_norm)));
        }
        all
    }
}

/// The forward pass agrees with plain loops.
#[test]
fn logits_are_those_of_plain_loops() {
    rayon::scope(|_| {
        let path = file();
        write(&path, 3, GgmlDType::Q8_0);
        let tokens: Vec<u32> = (0..40).map(|i| i * 97 % 261).collect();
        let expected = plain::logits(&path, &tokens);
        let largest = expected.iter().flatten().fold(0.0, |max: f64, logit| max.max(logit.abs()));
        // With 8-bit weights, candle rounds activations too: to 1/127 of a block's largest.
        for (weights, tolerance) in [(Weights::F32, 1e-5), (Weights::Auto, 0.05)] {
            let (mut model, _) = Llama::open(&path, weights, 64).unwrap();
            let rows = logits(&mut model, &tokens);
            for (row, expected) in rows.iter().zip(&expected) {
                for (logit, expected) in row.iter().zip(expected) {
                    let off = (f64::from(*logit) - expected).abs() / largest;
                    assert!(off < tolerance, "{weights:?}: {logit} instead of {expected}");
                }
            }
        }
    });
}

fn run(model: &mut Llama, drafter: &mut Drafter, prompt: &[u32], sampling: Sampling) -> Decoded {
    let handle = Handle::cpu().unwrap();
    // An additional row costs almost nothing, so all drafts are run.
    let request = Request { tokens: 512, stop: None, max_draft: 7, sampling, row: 0.01 };
    let mut streamed: Vec<u32> = Vec::new();
    let keep = |tokens: &[u32]| {
        streamed.extend(tokens);
        Ok(())
    };
    let decoded = decode(&handle, model, drafter, prompt, &request, keep).unwrap();
    assert_eq!(decoded.tokens, streamed);
    assert_eq!(decoded.tokens.len(), 512);
    decoded
}

/// Drafts change the number of runs of the model, but none of 512 tokens, greedy or sampled.
#[test]
fn drafts_leave_the_text() {
    rayon::scope(|_| {
        let handle = Handle::cpu().unwrap();
        let (mut model, text) = model(7, GgmlDType::Q8_0, Weights::Auto);
        let prompt = text.tokens("the hedgehog and the heron. the hedgehog and the").unwrap();
        let warm = Sampling { temperature: 0.5, top_k: 4, top_p: 0.9, seed: 11 };
        for sampling in [Sampling::GREEDY, warm] {
            let plain = run(&mut model, &mut Drafter::None, &prompt, sampling);
            assert_eq!((plain.steps, plain.drafted), (512, 0));
            let other = || self::model(8, GgmlDType::Q8_0, Weights::Auto).0;
            let same = || self::model(7, GgmlDType::Q8_0, Weights::Auto).0;
            let corpus = Arc::new(Corpus::new(&handle, 2048).unwrap());
            corpus.append(&for_corpus(&plain.tokens).unwrap()).unwrap();
            let drafters = [
                (Drafter::lookup(&handle, 1024, 7).unwrap(), 500),
                (Drafter::ngram(&handle, &prompt, 1024, 7).unwrap(), 500),
                (Drafter::suffix(&handle, 1024, 7, 1, None).unwrap(), 500),
                (Drafter::suffix(&handle, 1024, 7, 2, None).unwrap(), 500),
                // A corpus that has this text: nearly all drafts stand.
                (Drafter::suffix(&handle, 1024, 7, 2, Some(corpus)).unwrap(), 100),
                (Drafter::model(&handle, other(), sampling), 512),
                // A drafter that is the model itself is always right.
                (Drafter::model(&handle, same(), sampling), 64 + 1),
            ];
            for (mut drafter, max) in drafters {
                let drafted = run(&mut model, &mut drafter, &prompt, sampling);
                assert_eq!(drafted.tokens, plain.tokens);
                assert!(drafted.steps <= max, "{} steps, {sampling:?}", drafted.steps);
                assert!(drafted.drafted > 0);
            }
        }
        // Another seed gives another text.
        let plain = run(&mut model, &mut Drafter::None, &prompt, warm);
        let other = Sampling { seed: 12, ..warm };
        assert_ne!(run(&mut model, &mut Drafter::None, &prompt, other).tokens, plain.tokens);
    });
}

/// A head that has half of the model's tokens, in another order, draws the model's own token
/// whenever it has it, if its columns race on the noise of their tokens.
#[test]
fn columns_of_a_head_race_as_their_tokens() {
    rayon::scope(|_| {
        let handle = Handle::cpu().unwrap();
        let (mut target, text) = model(7, GgmlDType::Q8_0, Weights::Auto);
        let (mut draft, _) = model(7, GgmlDType::Q8_0, Weights::Auto);
        let prompt = text.tokens("the hedgehog and the heron").unwrap();
        // The highest tokens first: no column has its token's number.
        let head: Vec<u32> = (131..261).rev().collect();
        let sampling = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, seed: 3 };
        let models = (&mut target, &mut draft);
        let found = agreement::measure(&handle, models, &prompt, 24, sampling, Some(&head));
        let agreement::Agreement { draws, head, race, .. } = found.unwrap();
        assert_eq!(race, draws);
        assert!(head.within > draws / 4, "{head:?}");
        assert_eq!(head.mapped, head.within);
        assert!(head.unmapped < head.within / 2, "{head:?}");
    });
}

/// However a batch shares its budget, its texts are those of each request alone without drafts.
#[test]
fn a_budget_leaves_the_texts_of_a_batch() {
    rayon::scope(|_| {
        let handle = Handle::cpu().unwrap();
        let open = || model(7, GgmlDType::Q8_0, Weights::Auto);
        let (mut alone, text) = open();
        if !alone.has_trees() {
            eprintln!("NOT RUN: this processor has no AVX2");
            return;
        }
        let prompts = ["the hedgehog and the heron. the hedgehog and the", "he he he", "42"]
            .map(|prompt| text.tokens(prompt).unwrap());
        let warm = Sampling { temperature: 0.5, top_k: 4, top_p: 0.9, seed: 11 };
        for sampling in [Sampling::GREEDY, warm] {
            let request = |seed, stop| {
                let sampling = Sampling { seed, ..sampling };
                Request { tokens: 160, stop, max_draft: 0, sampling, row: 0.01 }
            };
            let mut plain = |stop| {
                let each = prompts.iter().zip(sampling.seed..).map(|(prompt, seed)| {
                    let (request, none) = (request(seed, stop), &mut Drafter::None);
                    decode(&handle, &mut alone, none, prompt, &request, |_| Ok(())).unwrap().tokens
                });
                each.collect::<Vec<_>>()
            };
            let stop = Some(plain(None)[0][100]);
            let expected = plain(stop);
            let mut models: Vec<Llama> = prompts.iter().map(|_| open().0).collect();
            let mut steps = Vec::new();
            for sharing in [Sharing::Equal, Sharing::Shared, Sharing::Trusted] {
                for budget in [0, 6, 24] {
                    let options = Batch { tokens: 160, stop, sampling, sharing, budget, row: 0.1 };
                    let found = batch::decode(&handle, &mut models, &prompts, &options).unwrap();
                    assert_eq!(found.answers, expected, "{sharing:?}, {budget}");
                    assert_eq!(found.drafted > 0, budget > 0, "{sharing:?}, {budget}");
                    steps.push(found.runs);
                }
            }
            // A budget saves runs.
            assert!(steps[2] < steps[0] && steps[8] < steps[0], "{steps:?}");
        }
    });
}

/// The stop token ends the answer, also if it is among the drafts.
#[test]
fn an_answer_ends() {
    rayon::scope(|_| {
        let handle = Handle::cpu().unwrap();
        let (mut model, text) = model(7, GgmlDType::Q8_0, Weights::Auto);
        let prompt = text.tokens("the hedgehog").unwrap();
        let plain = run(&mut model, &mut Drafter::None, &prompt, Sampling::GREEDY);
        let stop = plain.tokens[40];
        let end = plain.tokens.iter().position(|&token| token == stop).unwrap();
        let sampling = Sampling::GREEDY;
        let request = Request { tokens: 512, stop: Some(stop), max_draft: 7, sampling, row: 0.01 };
        let (same, _) = self::model(7, GgmlDType::Q8_0, Weights::Auto);
        let mut drafters = [Drafter::None, Drafter::model(&handle, same, sampling)];
        for drafter in &mut drafters {
            let decoded =
                decode(&handle, &mut model, drafter, &prompt, &request, |_| Ok(())).unwrap();
            assert_eq!(decoded.tokens, plain.tokens[..=end]);
        }
    });
}

/// Text becomes tokens by GPT-2's rules, with one token per digit, and tokens become the same
/// text again. A special token is one token and is not shown.
#[test]
fn text_is_tokenized_as_the_file_says() {
    rayon::scope(|_| {
        let (_, text) = model(7, GgmlDType::Q8_0, Weights::Auto);
        let vocabulary = vocabulary();
        let names = |tokens: &[u32]| -> Vec<&str> {
            tokens.iter().map(|&token| &*vocabulary[token as usize]).collect()
        };
        let tokens = text.tokens("he he 42é").unwrap();
        assert_eq!(names(&tokens), ["he", "Ġhe", "Ġ", "4", "2", "Ã", "©"]);
        assert_eq!(text.text(&tokens).unwrap(), "he he 42é");
        let chat = text.chat("he").unwrap();
        assert_eq!(chat, "<|im_start|>user\nhe<|im_end|>\n<|im_start|>assistant\n");
        let tokens = text.tokens(&chat).unwrap();
        assert_eq!((tokens[0], tokens.last()), (1, text.tokens("\n").unwrap().last()));
        assert_eq!(tokens.iter().filter(|&&token| token == text.end.unwrap()).count(), 1);
        assert_eq!(text.text(&tokens).unwrap(), "user\nhe\nassistant\n");
        // A character is shown when all of its bytes have arrived.
        let mut shown = Vec::new();
        text.stream(|piece| shown.push(piece.to_owned()))(&text.tokens("hé").unwrap()).unwrap();
        assert_eq!(shown, ["h", "é"]);
    });
}

/// The error of a bad call says what is wrong.
#[test]
fn bad_calls_are_refused() {
    rayon::scope(|_| {
        let path = file();
        let error = Llama::open(&path, Weights::Auto, 8).err().unwrap();
        assert!(format!("{error:#}").contains("tiny-"), "{error:#}");
        write(&path, 1, GgmlDType::Q8_0);
        let error = Llama::open(&path, Weights::Auto, 5000).err().unwrap();
        assert!(format!("{error:#}").contains("it was made for 4096"), "{error:#}");
        let (mut model, _) = Llama::open(&path, Weights::Auto, 8).unwrap();
        let error = model.run(&[1, 261]).err().unwrap();
        assert_eq!(error.to_string(), "token 261 is outside of the vocabulary of 261");
        let error = model.run(&[0; 9]).err().unwrap();
        assert_eq!(error.to_string(), "9 tokens, there is room for 8");
        assert!(model.is_empty());
        let sampling = Sampling::GREEDY;
        let request = Request { tokens: 8, stop: None, max_draft: 3, sampling, row: 0.1 };
        let handle = Handle::cpu().unwrap();
        let mut drafter = Drafter::None;
        for (prompt, words) in [(&[][..], "the prompt is empty"), (&[1][..], "have 9 tokens")] {
            let result = decode(&handle, &mut model, &mut drafter, prompt, &request, |_| Ok(()));
            assert!(result.err().unwrap().to_string().contains(words));
        }
    });
}
