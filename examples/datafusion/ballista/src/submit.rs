//! Submits plans to the scheduler, and submits a plan again if its job stands still.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ballista_api_types::dto::{JobResponse, QueryStagesResponse, TaskStatus, TaskSummary};
use ballista_core::execution_plans::execute_physical_plan;
use ballista_core::extension::SessionConfigExt;
use clap::Args;
use datafusion::arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result, exec_err};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionConfig;
use datafusion_proto::protobuf::PhysicalPlanNode;
use futures::TryStreamExt;
use reqwest::{Client, Method};
use serde::de::{DeserializeOwned, IgnoredAny};
use uuid::Uuid;

use crate::codec;

/// How often the client asks for a job's progress.
const POLL: Duration = Duration::from_millis(500);
/// How long the client waits for an answer of the scheduler's HTTP interface.
const ANSWER: Duration = Duration::from_secs(10);

#[derive(Args)]
pub struct Options {
    /// The URL of the scheduler.
    #[arg(long, default_value = "http://127.0.0.1:50050")]
    scheduler: String,
    /// A job stands still if none of its tasks has started or ended for this many seconds. The client then cancels
    /// the job and submits it again. To be longer than the longest task, and than the scheduler
    /// takes to notice a lost worker (its `--executor-timeout-seconds`, 180).
    #[arg(long, default_value_t = NonZeroU32::new(600).unwrap())]
    stall_seconds: NonZeroU32,
    /// How often the client submits a job at most.
    #[arg(long, default_value_t = NonZeroU32::new(3).unwrap())]
    submissions: NonZeroU32,
}

/// A client of the scheduler.
pub struct Scheduler<'a> {
    options: &'a Options,
    config: SessionConfig,
    http: Client,
}

/// Of each stage of a job: its status, the number of its tasks that were started, and of those that still run.
type Progress = Vec<(String, usize, usize)>;

impl<'a> Scheduler<'a> {
    /// # Errors
    /// External if no HTTP client can be made.
    pub fn new(options: &'a Options, config: SessionConfig) -> Result<Self> {
        // The connection for plans uses no proxy either.
        let http = Client::builder().timeout(ANSWER).no_proxy().build();
        let http = http.map_err(|error| DataFusionError::External(Box::new(error)))?;
        Ok(Scheduler { options, config, http })
    }

    /// Executes a plan on the cluster and returns what its root returns. `make` makes the plan, and a
    /// resource that the plan needs, anew for each submission. The resource of a cancelled job is dropped, so tasks
    /// that outlive their job share nothing with the next submission.
    ///
    /// # Errors
    /// If the job fails, if every submission is given up, or if the user interrupts it.
    pub async fn execute<R>(
        &self,
        mut make: impl AsyncFnMut() -> Result<(Arc<dyn ExecutionPlan>, R)>,
    ) -> Result<(Vec<RecordBatch>, R)> {
        let (stall, submissions) = (self.options.stall_seconds, self.options.submissions);
        let mut why = String::new();
        for submission in 1..=submissions.get() {
            let (plan, resource) = make().await?;
            let job = format!("distinct keys {}", Uuid::new_v4());
            tokio::select! {
                batches = self.submit(plan, &job) => match batches? {
                    Ok(batches) => return Ok((batches, resource)),
                    Err(error) => why = format!("its result was lost with a worker ({error})"),
                },
                () = self.stall(&job) => {
                    self.cancel(&job).await;
                    why = format!("none of its tasks started or ended for {stall} s");
                }
                _ = tokio::signal::ctrl_c() => {
                    self.cancel(&job).await;
                    return exec_err!("interrupted");
                }
            }
            println!("submission {submission} of {submissions} is given up: {why}");
        }
        exec_err!(
            "the job was submitted {submissions} times; the last time, {why}: the logs of the scheduler and \
             the workers may say more"
        )
    }

    /// The outer result is an error if the job fails; the inner one, if the job has ended and its result cannot be fetched
    /// from the workers.
    async fn submit(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        job: &str,
    ) -> Result<Result<Vec<RecordBatch>>> {
        let session = Uuid::new_v4().to_string();
        let config = self.config.clone().with_ballista_job_name(job);
        let (url, settings) = (self.options.scheduler.clone(), config.ballista_config());
        let codec = codec();
        let stream = execute_physical_plan::<PhysicalPlanNode>(
            url, &settings, plan, &*codec, session, config,
        );
        Ok(stream.await?.try_collect().await)
    }

    /// Returns when the job stands still. A scheduler that does not answer counts as no progress.
    async fn stall(&self, job: &str) {
        let limit = Duration::from_secs(self.options.stall_seconds.get().into());
        let (mut last, mut moved) = (Progress::new(), Instant::now());
        while moved.elapsed() < limit {
            tokio::time::sleep(POLL).await;
            match self.progress(job).await {
                Some(now) if now != last => (last, moved) = (now, Instant::now()),
                _ => {}
            }
        }
    }

    /// `None` without an answer.
    async fn progress(&self, job: &str) -> Option<Progress> {
        let id = self.id(job).await?;
        let stages: QueryStagesResponse =
            self.ask(Method::GET, &format!("job/{id}/stages")).await?;
        let progress = stages.stages.into_iter().map(|stage| {
            let running = |task: &&TaskSummary| matches!(task.status, TaskStatus::Running);
            let running = stage.tasks.iter().flatten().filter(running).count();
            (stage.stage_status, stage.tasks.len(), running)
        });
        Some(progress.collect())
    }

    /// Asks the scheduler to cancel a job. If the scheduler does not answer, the job may go on, but nobody uses its files.
    async fn cancel(&self, job: &str) {
        if let Some(id) = self.id(job).await {
            let _: Option<IgnoredAny> = self.ask(Method::PATCH, &format!("job/{id}")).await;
        }
    }

    /// The scheduler's identifier of a job. `execute_physical_plan` does not return it.
    async fn id(&self, job: &str) -> Option<String> {
        let jobs: Vec<JobResponse> = self.ask(Method::GET, "jobs").await?;
        jobs.into_iter().find(|other| other.job_name == job).map(|found| found.job_id)
    }

    /// What the scheduler's HTTP interface answers.
    async fn ask<T: DeserializeOwned>(&self, method: Method, path: &str) -> Option<T> {
        let url = format!("{}/api/{path}", self.options.scheduler);
        let response = self.http.request(method, url).send().await.ok()?;
        let body = response.error_for_status().ok()?.bytes().await.ok()?;
        serde_json::from_slice(&body).ok()
    }
}
