package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/subjects"
)

// followEvery is the interval of reading the stored audit.
const followEvery = 250 * time.Millisecond

func (a *app) auditCommand() *cobra.Command {
	var follow bool
	var globs subjects.Globs
	var back time.Duration
	cmd := &cobra.Command{
		Use: "audit", Short: "List the calls that ended, with their callers and outcomes",
		Long: `List the calls that nodes ran or refused, the oldest first, of all sessions or of the
one that --session names. The mesh keeps them once a node runs with --audit (MESH_AUDIT).
-f then follows the calls that end from now on, with --json a line for each; without
--audit it misses those that end while its connection is cut. You need an
administrator's key.`,
		Args: nothing,
		RunE: a.onMesh(func(ctx context.Context, l *link, _ []string) error {
			of := subjects.SessionID("")
			if a.sessionGiven {
				of = l.session
			}
			subject, err := subjects.CallEvents(of)
			if err != nil {
				return usage(nil, "%s", err.Error())
			}
			var after time.Time
			if back > 0 {
				after = l.bus.Time().Now.Add(-back)
			}
			var calls []codec.CallEvent
			show := func(data []byte) {
				var e codec.CallEvent
				switch {
				case json.Unmarshal(data, &e) != nil || !globs.Match(e.Tool) || e.Time.Before(after):
				case !follow:
					calls = append(calls, e)
				case a.json:
					a.printJSON(e)
				default:
					fmt.Fprintln(a.out, oneLine(auditRow(e), "  "))
				}
			}
			var latest store.Stored // that was read
			var until time.Time     // what was stored until then is shown
			for kept := false; ; kept = true {
				there := latest.Seq == 0 // the latest one, or none is known
				for m, err := range store.Of(l.bus).Read(ctx, store.Query{Stream: subjects.StreamAudit, Subject: subject, From: latest.Seq}) {
					switch {
					case err == nil && there:
						if m.Time.After(until) {
							show(m.Data)
						}
						latest = *m
					case err == nil: // without the latest one at the beginning, all is read again
						there = m.Seq == latest.Seq && m.Time.Equal(latest.Time)
					case kept: // the connection is interrupted: read again
						there = true
					case !errors.Is(err, nats.ErrNoResponders):
						return err
					case follow:
						return live(ctx, l, subject, show)
					default:
						return refused(toolmesh.OriginMesh, toolmesh.CodeUnavailable, "the mesh keeps no audit: start mesh up, or an agent, with --audit (MESH_AUDIT), or follow the calls that end from now on (-f)")
					}
				}
				if !there { // it has expired, or the stream was made anew: its sequences begin again
					if latest.Time.After(until) {
						until = latest.Time
					}
					latest.Seq = 0
				}
				if !follow {
					printAll(a, "calls", calls, "no call that was asked for has ended", auditColumns, auditRow)
					return nil
				}
				if !wake.After(ctx, followEvery) {
					return ctx.Err()
				}
			}
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with the calls that end from now on")
	cmd.Flags().Func("tool", "of these tools alone: `GLOB,…`, where * stands for any text without a dot and ** for any", func(text string) (err error) {
		globs, err = subjects.ParseGlobs(text)
		return err
	})
	durationFlag(cmd, &back, "since", 0, "of this `TIME` until now, such as 15m, 24h or 7d (default all that are kept)")
	return cmd
}

// live shows events as they arrive from a mesh that stores none.
func live(ctx context.Context, l *link, subject string, show func(event []byte)) error {
	events := make(chan *nats.Msg, 1024)
	sub, err := l.nc.ChanSubscribe(subject, events)
	if err != nil {
		return fmt.Errorf("follow the calls: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	for {
		select {
		case m := <-events:
			show(m.Data)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

var auditColumns = []string{"TIME", "SESSION", "KEY", "TOOL", "NODE", "OUTCOME", "MS", "RPC"}

func auditRow(e codec.CallEvent) []string {
	return []string{
		localTime(e.Time), string(e.Session), cmp.Or(e.Key, "-"), string(e.Tool), string(e.Node),
		cmp.Or(string(e.Code), e.Status), strconv.FormatFloat(e.DurationMS, 'f', 1, 64), string(e.RPCID),
	}
}
