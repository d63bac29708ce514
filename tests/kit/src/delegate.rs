//! Wrappers of stores: a test writes the methods that are about it, and delegates the others.

/// Writes methods of `Store`, each of which calls the same method of a field. Takes the field and the methods.
#[macro_export]
macro_rules! delegate_store {
    (@clock $store:tt) => {
        fn clock(&self) -> ::leasehold::clock::Clock {
            self.$store.clock()
        }
    };
    (@capabilities $store:tt) => {
        fn capabilities(&self) -> ::leasehold::store::Capabilities {
            self.$store.capabilities()
        }
    };
    (@shard $store:tt) => {
        fn shard(&self, name: &::leasehold::store::Name) -> usize {
            self.$store.shard(name)
        }
    };
    (@acquire $store:tt) => {
        fn acquire(
            &self,
            request: ::leasehold::store::Acquire,
        ) -> ::leasehold::store::StoreFuture<::leasehold::store::Acquired> {
            self.$store.acquire(request)
        }
    };
    (@acquire_all $store:tt) => {
        fn acquire_all(
            &self,
            requests: Vec<::leasehold::store::Acquire>,
        ) -> ::leasehold::store::StoreFuture<::leasehold::store::SetVerdicts> {
            self.$store.acquire_all(requests)
        }
    };
    (@is_atomic $store:tt) => {
        fn is_atomic(&self, names: &[&::leasehold::store::Name]) -> bool {
            self.$store.is_atomic(names)
        }
    };
    (@release $store:tt) => {
        fn release(
            &self,
            request: ::leasehold::store::Release,
        ) -> ::leasehold::store::StoreFuture<::leasehold::store::Released> {
            self.$store.release(request)
        }
    };
    (@renew $store:tt) => {
        fn renew(
            &self,
            batch: ::leasehold::store::RenewBatch,
        ) -> Vec<::leasehold::store::RenewCall> {
            self.$store.renew(batch)
        }
    };
    (@reconnects $store:tt) => {
        fn reconnects(&self) -> Option<::leasehold::store::Signal> {
            self.$store.reconnects()
        }
    };
    (@inbox $store:tt) => {
        fn inbox(&self, manager: ::uuid::Uuid) -> Option<::leasehold::store::Inbox> {
            self.$store.inbox(manager)
        }
    };
    (@guard_key $store:tt) => {
        fn guard_key(&self, name: &::leasehold::store::Name) -> Option<String> {
            self.$store.guard_key(name)
        }
    };
    (@list $store:tt) => {
        fn list(
            &self,
            request: ::leasehold::store::List,
        ) -> ::leasehold::Result<Box<dyn ::leasehold::store::Pages>> {
            self.$store.list(request)
        }
    };
    (@resize $store:tt) => { $crate::delegate_store!(@async resize $store Resize, Option<u32>); };
    (@inspect $store:tt) => {
        $crate::delegate_store!(@async inspect $store Inspect, ::leasehold::store::Inspection);
    };
    (@annotate $store:tt) => { $crate::delegate_store!(@async annotate $store Annotate, bool); };
    (@describe $store:tt) => { $crate::delegate_store!(@async describe $store Describe, ()); };
    (@owners $store:tt) => {
        $crate::delegate_store!(
            @async owners $store Owners, Vec<Option<::leasehold::store::Owner>>
        );
    };
    (@force_release $store:tt) => {
        $crate::delegate_store!(@async force_release $store ForceRelease, bool);
    };
    (@subscribe $store:tt) => {
        $crate::delegate_store!(
            @async subscribe $store Wait, Option<::leasehold::store::Wakeups>
        );
    };
    (@reserve $store:tt) => {
        $crate::delegate_store!(@async reserve $store Reserve, ::leasehold::store::Reserved);
    };
    (@want $store:tt) => { $crate::delegate_store!(@async want $store Want, bool); };
    // As `async_trait` writes it: that sees no method that a macro writes.
    (@async $method:ident $store:tt $request:ident, $output:ty) => {
        fn $method<'a, 'b>(
            &'a self,
            request: ::leasehold::store::$request,
        ) -> ::std::pin::Pin<
            Box<dyn ::std::future::Future<Output = ::leasehold::Result<$output>> + Send + 'b>,
        >
        where
            'a: 'b,
            Self: 'b,
        {
            self.$store.$method(request)
        }
    };
    ($store:tt: $($method:ident)+) => { $($crate::delegate_store!(@$method $store);)+ };
}
