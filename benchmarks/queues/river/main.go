// River's worker with the settings of `river bench`: river URL JOBS SAMPLES.
package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

type noop struct{}

func (noop) Kind() string { return "noop" }

type worker struct {
	river.WorkerDefaults[noop]
	called atomic.Int64
}

func (w *worker) Work(context.Context, *river.Job[noop]) error { w.called.Add(1); return nil }

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	ctx, noops := context.Background(), &worker{}
	jobs, _ := strconv.Atoi(os.Args[2])
	samples, _ := strconv.Atoi(os.Args[3])
	pool, err := pgxpool.New(ctx, os.Args[1])
	check(err)
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, nil)
	check(err)
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	check(err)
	workers := river.NewWorkers()
	river.AddWorker(workers, noops)
	client, err := river.NewClient(driver, &river.Config{
		FetchCooldown: 2 * time.Millisecond, FetchPollInterval: 20 * time.Millisecond, JobTimeout: -1,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2000}}, Workers: workers,
	})
	check(err)
	enqueue := func(count int) {
		many := make([]river.InsertManyParams, count)
		for i := range many {
			many[i] = river.InsertManyParams{Args: noop{}}
		}
		_, err := client.InsertManyFast(ctx, many)
		check(err)
	}
	wait := func(total int, pause time.Duration) {
		for noops.called.Load() < int64(total) {
			time.Sleep(pause)
		}
	}
	enqueue(jobs)
	began := time.Now()
	check(client.Start(ctx))
	wait(jobs, time.Millisecond)
	rate := float64(jobs) / time.Since(began).Seconds()
	time.Sleep(time.Second)
	enqueue(jobs)
	began = time.Now()
	wait(2*jobs, time.Millisecond)
	running := float64(jobs) / time.Since(began).Seconds()
	time.Sleep(time.Second)
	took := make([]float64, samples)
	for i := range took {
		began = time.Now()
		_, err := client.Insert(ctx, noop{}, nil)
		check(err)
		wait(2*jobs+i+1, 50*time.Microsecond)
		took[i] = time.Since(began).Seconds() * 1000
		time.Sleep(10 * time.Millisecond)
	}
	slices.Sort(took)
	figures := map[string]float64{"rate": rate, "running_rate": running, "p50_ms": took[samples/2], "p99_ms": took[samples*99/100]}
	check(json.NewEncoder(os.Stdout).Encode(figures))
}
