// redsync on go-redis, with its defaults, but without a limit on retries. Arguments: address, scenario, seconds.
package main

import (
	"fmt"
	"os"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
	goredislib "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis "github.com/redis/go-redis/v9"
)

// A pair locks and unlocks a name.
type pair func(name string) error

func withRedsync(address string) pair {
	pool := goredislib.NewPool(goredis.NewClient(&goredis.Options{Addr: address}))
	sync := redsync.New(pool)
	return func(name string) error {
		mutex := sync.NewMutex(name, redsync.WithExpiry(30*time.Second), redsync.WithTries(1<<30))
		if err := mutex.Lock(); err != nil {
			return err
		}
		_, err := mutex.Unlock()
		return err
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func measure(lock pair, names []string, limit time.Duration) []time.Duration {
	var group sync.WaitGroup
	all := make([][]time.Duration, len(names))
	until := time.Now().Add(limit)
	for task, name := range names {
		group.Add(1)
		go func() {
			defer group.Done()
			for time.Now().Before(until) {
				start := time.Now()
				check(lock(name))
				all[task] = append(all[task], time.Since(start))
			}
		}()
	}
	group.Wait()
	var times []time.Duration
	for _, part := range all {
		times = append(times, part...)
	}
	sort.Slice(times, func(a, b int) bool { return times[a] < times[b] })
	return times
}

func main() {
	address, scenario := os.Args[1], os.Args[2]
	seconds, err := strconv.ParseFloat(os.Args[3], 64)
	check(err)
	lock := withRedsync(address)
	var names []string
	switch scenario {
	case "alone":
		names = []string{"alone"}
	case "names":
		for task := range 64 {
			names = append(names, fmt.Sprintf("name-%d", task))
		}
	case "one":
		for range 32 {
			names = append(names, "one")
		}
	}
	// The first round warms up.
	measure(lock, names, time.Second)
	times := measure(lock, names, time.Duration(seconds*float64(time.Second)))
	median := float64(times[len(times)/2].Nanoseconds()) / 1e3
	fmt.Printf("%.1f %.0f\n", median, float64(len(times))/seconds)
}
