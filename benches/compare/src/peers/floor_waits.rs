//! What a grant in another process costs without a lock library: leasehold's two scripts, bare, and a second connection of the
//! same client for the message of the release. It only looks once for each message, so a lost one would be waited for.

use super::bare::{self, Loaded};
use crate::contender::{Contender, Lock, Result};
use fred::clients::{Client, SubscriberClient};
use fred::interfaces::{ClientLike, EventInterface, PubsubInterface};
use fred::types::config::Config;
use fred::types::{Builder, ClusterHash, CustomCommand, Message, Value};
use tokio::sync::broadcast::Receiver;

#[derive(Clone)]
pub struct FloorThatWaits {
    client: Client,
    subscriber: SubscriberClient,
    loaded: Loaded,
    /// Each process is a holder of its own.
    token: String,
}

pub async fn connect(url: String) -> std::result::Result<FloorThatWaits, fred::error::Error> {
    let client = bare::client(&url).await?;
    let loaded = Loaded::new(&client).await?;
    let subscriber = Builder::from_config(Config::from_url(&url)?).build_subscriber_client()?;
    subscriber.init().await?;
    let token = format!("floor:{}", std::process::id());
    Ok(FloorThatWaits { client, subscriber, loaded, token })
}

pub struct Handle {
    floor: FloorThatWaits,
    name: String,
    messages: Option<Receiver<Message>>,
}

impl Handle {
    /// Sends a script with the token of this process in place of the one that all floors share.
    async fn send(&self, mut words: Vec<Value>) -> Result<Value> {
        for word in &mut words {
            if word.as_str().as_deref() == Some(bare::TOKEN) {
                *word = self.floor.token.as_str().into();
            }
        }
        let command = CustomCommand::new_static("EVALSHA", ClusterHash::Offset(2), false);
        let reply = self.floor.client.custom(command, words).await;
        reply.map_err(|error: fred::error::Error| error.to_string())
    }

    async fn listen(&mut self) -> Result<()> {
        if self.messages.is_none() {
            let channel = format!("redisson_lock__channel:{{{}}}", self.name);
            let subscriber = &self.floor.subscriber;
            self.messages = Some(subscriber.message_rx());
            subscriber.subscribe(channel).await.map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

impl Contender for FloorThatWaits {
    type Lock = Handle;

    fn lock(&self, name: &str) -> Handle {
        Handle { floor: self.clone(), name: name.to_owned(), messages: None }
    }
}

impl Lock for Handle {
    async fn acquire(&mut self) -> Result<()> {
        self.listen().await?;
        loop {
            let words = self.floor.loaded.acquire(&self.name, true);
            // A fencing token; else how long the holder has it, in a form that a bare client need not know.
            if let Value::Integer(1..) = self.send(words).await? {
                return Ok(());
            }
            let Some(messages) = &mut self.messages else { return Err("not listening".to_owned()) };
            messages.recv().await.map_err(|error| error.to_string())?;
        }
    }

    async fn release(&mut self) -> Result<()> {
        let words = self.floor.loaded.release(&self.name);
        self.send(words).await.map(drop)
    }
}
