//! Moves items and money between keys of a Redis server: a lock in place of `WATCH`.
//!
//! ```sh
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example marketplace
//! ```
//!
//! A purchase reads a price, an owner and two balances, decides, and writes four keys. With `WATCH` each
//! buyer would start over whenever another one was faster, which in a busy market is nearly always.
//! With one lease per market they take turns.
//!
//! The lease keeps others out. `MULTI` makes all writes happen or none, if this process dies between
//! them. Neither does the work of the other.

use fred::prelude::*;
use leasehold::LeaseManager;
use std::collections::HashMap;
use std::error::Error as StdError;
use std::process::ExitCode;
use std::time::Duration;
use tokio::task::JoinSet;

type Result<T, E = Box<dyn StdError + Send + Sync>> = std::result::Result<T, E>;

const TRADERS: [&str; 6] = ["ann", "ben", "cleo", "dan", "eve", "finn"];
const ITEMS_EACH: usize = 5;
const COINS_EACH: i64 = 100;

#[derive(Clone)]
struct Market {
    /// The lock's name, which is also the prefix of the three keys.
    name: String,
    leases: LeaseManager,
    redis: Client,
}

enum Purchase {
    Done { seller: String, price: i64 },
    NotForSale,
    TooDear,
}

impl Market {
    /// A hash: trader -> coins.
    fn coins(&self) -> String {
        format!("{}:coins", self.name)
    }

    /// A hash: item -> trader.
    fn owners(&self) -> String {
        format!("{}:owners", self.name)
    }

    /// A hash: item for sale -> price.
    fn prices(&self) -> String {
        format!("{}:prices", self.name)
    }

    async fn open(&self) -> Result<()> {
        for trader in TRADERS {
            let () = self.redis.hset(self.coins(), (trader, COINS_EACH)).await?;
            for number in 1..=ITEMS_EACH {
                let item = format!("{trader}'s item {number}");
                let () = self.redis.hset(self.owners(), (item, trader)).await?;
            }
        }
        Ok(())
    }

    async fn offer(&self, seller: &str, item: &str, price: i64) -> Result<bool> {
        let lease = self.leases.lock(&self.name).lock().await?;
        let owner: Option<String> = self.redis.hget(self.owners(), item).await?;
        let is_ours = owner.as_deref() == Some(seller);
        if is_ours {
            let () = self.redis.hset(self.prices(), (item, price)).await?;
        }
        lease.unlock().await?;
        Ok(is_ours)
    }

    async fn buy(&self, buyer: &str, item: &str) -> Result<Purchase> {
        let lease = self.leases.lock(&self.name).lock().await?;
        // Dropped half way if the lease is lost: then another buyer may be in the market.
        let purchase = lease.run(self.trade(buyer, item)).await??;
        lease.unlock().await?;
        Ok(purchase)
    }

    /// Trades. Call it under the lease: it writes balances that it computed from what it read.
    async fn trade(&self, buyer: &str, item: &str) -> Result<Purchase> {
        let price: Option<i64> = self.redis.hget(self.prices(), item).await?;
        let seller: Option<String> = self.redis.hget(self.owners(), item).await?;
        let (Some(price), Some(seller)) = (price, seller) else {
            return Ok(Purchase::NotForSale);
        };
        if seller == buyer {
            return Ok(Purchase::NotForSale);
        }
        let of_buyer: i64 = self.redis.hget(self.coins(), buyer).await?;
        let of_seller: i64 = self.redis.hget(self.coins(), &seller).await?;
        if of_buyer < price {
            return Ok(Purchase::TooDear);
        }

        let all = self.redis.multi();
        let () = all.hset(self.coins(), (buyer, of_buyer - price)).await?;
        let () = all.hset(self.coins(), (&seller, of_seller + price)).await?;
        let () = all.hset(self.owners(), (item, buyer)).await?;
        let () = all.hdel(self.prices(), item).await?;
        let () = all.exec(true).await?;
        Ok(Purchase::Done { seller, price })
    }

    /// Returns an error if money or an item was made or lost.
    async fn audit(&self) -> Result<()> {
        let coins: HashMap<String, i64> = self.redis.hgetall(self.coins()).await?;
        let owners: HashMap<String, String> = self.redis.hgetall(self.owners()).await?;
        for trader in TRADERS {
            let items = owners.values().filter(|owner| *owner == trader).count();
            println!("  {trader:4} has {:3} coins and {items:2} items", coins[trader]);
        }
        let (sum, started_with) = (coins.values().sum::<i64>(), COINS_EACH * TRADERS.len() as i64);
        let items = TRADERS.len() * ITEMS_EACH;
        println!("  together {sum} coins and {} items", owners.len());
        if sum != started_with || owners.len() != items || coins.values().any(|coins| *coins < 0) {
            return Err(
                format!("the market opened with {started_with} coins, {items} items").into()
            );
        }
        Ok(())
    }

    async fn clear(&self) -> Result<()> {
        Ok(self.redis.del(vec![self.coins(), self.owners(), self.prices()]).await?)
    }
}

/// Offers all items of the trader, then tries to buy the items of all others, cheapest first.
async fn trade_all_day(market: Market, trader: usize) -> Result<[u32; 3]> {
    let name = TRADERS[trader];
    for number in 1..=ITEMS_EACH {
        let price = 8 * number + trader;
        market.offer(name, &format!("{name}'s item {number}"), price as i64).await?;
    }
    let (mut bought, mut too_late, mut too_dear) = (0, 0, 0);
    for number in 1..=ITEMS_EACH {
        for seller in TRADERS.iter().filter(|seller| **seller != name) {
            let item = format!("{seller}'s item {number}");
            match market.buy(name, &item).await? {
                Purchase::Done { seller, price } => {
                    println!("  {name:4} buys {item:13} from {seller:4} for {price:2} coins");
                    bought += 1;
                }
                Purchase::NotForSale => too_late += 1,
                Purchase::TooDear => too_dear += 1,
            }
        }
    }
    Ok([bought, too_late, too_dear])
}

async fn trade_at_once(market: &Market) -> Result<()> {
    println!("The market opens; all trade at once:");
    market.open().await?;
    let mut days = JoinSet::new();
    for trader in 0..TRADERS.len() {
        days.spawn(trade_all_day(market.clone(), trader));
    }
    let mut totals = [0; 3];
    while let Some(day) = days.join_next().await {
        for (total, count) in totals.iter_mut().zip(day??) {
            *total += count;
        }
    }
    let [bought, too_late, too_dear] = totals;
    println!("{bought} purchases; {too_late} times too late, {too_dear} times too dear.");
    println!("At the end of the day:");
    market.audit().await
}

async fn run(url: &str) -> Result<()> {
    // The name of this run is not used again: a minute is enough to remember its fencing tokens.
    let leases =
        LeaseManager::builder().fence_retention(Some(Duration::from_secs(60))).connect(url).await?;
    let mut redis = Builder::from_config(Config::from_url(url)?);
    // Without a limit, a command waits for as long as the server is away.
    redis.with_performance_config(|config| config.default_command_timeout = Duration::from_secs(5));
    let redis = redis.build()?;
    redis.init().await?;
    let market =
        Market { name: format!("leasehold-example:market:{}", std::process::id()), leases, redis };

    let traded = trade_at_once(&market).await;
    let cleared = market.clear().await;
    // The first error is the reason of the others.
    traded.and(cleared)?;
    market.leases.close().await?;
    market.redis.quit().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    let url = std::env::var("REDIS_URL").unwrap_or_default();
    if !url.starts_with("redis") {
        eprintln!("marketplace moves data between keys of a real Redis server; set REDIS_URL:");
        eprintln!("  REDIS_URL=redis://127.0.0.1:6379 cargo run --example marketplace");
        return ExitCode::from(2);
    }
    match run(&url).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("marketplace: {error}");
            ExitCode::FAILURE
        }
    }
}
