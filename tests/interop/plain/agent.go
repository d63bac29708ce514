// The Go side of the tests of plain locks: redsync. As agent.py; arguments: the ports of the servers.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

const delay = 20 * time.Millisecond

var locks = map[string]*redsync.Mutex{}

func millis(text string) time.Duration {
	number, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return time.Duration(number) * time.Millisecond
}

func run(client *redsync.Redsync, words []string) (bool, error) {
	operation, name := words[0], words[1]
	switch operation {
	case "try", "wait":
		tries := 1
		if operation == "wait" {
			tries += int(millis(words[3]) / delay)
		}
		mutex := client.NewMutex(name, redsync.WithExpiry(millis(words[2])), redsync.WithTries(tries),
			redsync.WithRetryDelay(delay))
		if err := mutex.Lock(); err != nil {
			return false, err
		}
		locks[name] = mutex
		return true, nil
	case "extend":
		// By the time to live that it was acquired with.
		return locks[name].Extend()
	default:
		return locks[name].Unlock()
	}
}

func refused(err error) bool {
	var taken *redsync.ErrTaken
	return errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) || errors.Is(err, redsync.ErrExtendFailed) ||
		strings.Contains(err.Error(), "lock already taken") || strings.Contains(err.Error(), "already expired")
}

func main() {
	var pools []redsyncredis.Pool
	for _, port := range os.Args[1:] {
		pools = append(pools, goredis.NewPool(redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port})))
	}
	client := redsync.New(pools...)
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		got, err := run(client, strings.Fields(lines.Text()))
		switch {
		case err == nil:
			fmt.Println(got)
		case refused(err):
			fmt.Println(false)
		default:
			fmt.Println("error", strings.ReplaceAll(err.Error(), "\n", " "))
		}
	}
}
