package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sidestream/agent"
	"sidestream/sdk"
)

const watchEvery = 2 * time.Second

func newStatus() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show on one screen whether the cluster is well, what is wrong and what to do",
		Long: `Show on one screen whether the cluster is well, and if not what is wrong, since
when and what to do. It asks the brokers, agents and the sidecar, and shows what
those know that answer, with its age: an agent goes on knowing the cluster while
Consul is away, and a sidecar what its applications use. Whoever was named by a
flag or the environment and does not answer is a problem; one that is looked for
at its usual address is not.

Exit codes: 0 all is well, 3 something is wrong, 4 nobody answers.`,
		Example: "  sidestream status\n  sidestream status --agent host1:4101 --agent host2:4101 --watch\n  sidestream status --json",
		Args:    usage(noArgs),
	}
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	watch := cmd.Flags().Bool("watch", false, "show it again every 2 s until stopped; with --json one object a line")
	from := sourceFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		for {
			answers, err := from.gather(cmd.Context())
			if err != nil {
				return err
			}
			now := time.Now()
			st := assess(answers, now)
			if *watch && cmd.Context().Err() != nil {
				return nil // it was stopped while it asked
			}
			if err := showStatus(cmd.OutOrStdout(), st, *asJSON, *watch); err != nil {
				return err
			}
			if !*watch {
				return statusError(st)
			}
			select {
			case <-cmd.Context().Done():
				return statusError(st)
			case <-time.After(watchEvery):
			}
		}
	}
	return cmd
}

// statusError carries the exit code; everything is said already.
func statusError(st clusterStatus) error {
	switch st.State {
	case stateDegraded:
		return exitError(exitDegraded)
	case stateUnknown:
		return exitError(exitNobody)
	}
	return nil
}

func showStatus(w io.Writer, st clusterStatus, asJSON, again bool) error {
	switch {
	case asJSON && again:
		return json.NewEncoder(w).Encode(st)
	case asJSON:
		return printJSON(w, st)
	}
	text := st.text()
	if f, ok := w.(*os.File); again && ok && term.IsTerminal(int(f.Fd())) {
		text = "\033[H\033[2J" + text // the screen is cleared
	} else if again {
		text += "\n"
	}
	_, err := io.WriteString(w, text)
	return err
}

// answers is what those said who were asked.
type answers struct {
	brokers      *knowledge
	brokersErr   error
	brokersNamed bool // the user said where they are
	agents       []agentAnswer
	agentsNamed  bool
	sidecar      *sidecarStatus
	sidecarErr   error
	sidecarNamed bool
	sidecarAt    string
}

type agentAnswer struct {
	address string
	status  *agent.Status
	err     error
}

// gather asks all of them at once; brokers are looked for where the agents say,
// too. The error is of the flags.
func (s sources) gather(ctx context.Context) (answers, error) {
	a := answers{brokersNamed: s.named("bootstrap", envBootstrap), agentsNamed: s.named("agent", envAgent),
		sidecarNamed: s.named("sidecar", envSidecar), sidecarAt: s.sidecarAddress()}
	c, err := client(s.cmd, *s.sidecar, sdk.WithRetry(sdk.Retry{Attempts: 1}))
	if err != nil {
		return a, err
	}
	defer c.Close()
	addresses := s.agentList()
	a.agents = make([]agentAnswer, len(addresses))
	var wg sync.WaitGroup
	wg.Go(func() {
		call, cancel := context.WithTimeout(ctx, askTime)
		defer cancel()
		var st sidecarStatus
		if a.sidecarErr = c.Status(call, &st); a.sidecarErr == nil {
			a.sidecar = &st
		}
	})
	var agents sync.WaitGroup
	for i, address := range addresses {
		agents.Go(func() {
			var st agent.Status
			a.agents[i] = agentAnswer{address: address}
			if a.agents[i].err = getAgent(ctx, address, "/status", &st); a.agents[i].err == nil {
				a.agents[i].status = &st
			}
		})
	}
	agents.Wait()
	if !a.brokersNamed {
		var there []string
		for _, x := range a.agents {
			if x.status != nil && x.status.Broker != "" {
				there = append(there, x.status.Broker)
			}
		}
		if len(there) > 0 {
			s.bootstrap = &there
		}
	}
	k, err := s.fromBrokers(ctx, nil, nil)
	wg.Wait()
	if _, usage := err.(usageError); usage {
		return a, err
	}
	if a.brokersErr = err; err == nil {
		a.brokers = &k
	}
	return a, nil
}

// text is the screen.
func (st clusterStatus) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s)\n", st.headline(), st.At.UTC().Format("2006-01-02 15:04:05 UTC"))
	for i, p := range st.Problems {
		since := ""
		if p.Since != nil {
			since = fmt.Sprintf("\n     since %s (%s)", p.Since.UTC().Format("15:04:05 UTC"), st.At.Sub(*p.Since).Round(time.Second))
			if p.Before {
				since += " at the latest"
			}
		}
		fmt.Fprintf(&b, "\n  %d. %s%s\n     %s\n", i+1, p.What, since, "to do: "+p.Do)
		if p.Source != "" {
			fmt.Fprintf(&b, "     told by %s\n", p.Source)
		}
	}
	if st.More > 0 {
		fmt.Fprintf(&b, "\n  and %s\n", plural(st.More, "more problem"))
	}
	b.WriteString("\n")
	var lines [][2]string
	if k := st.Brokers; k != nil {
		var names []string
		for _, n := range k.Live[:min(len(k.Live), 10)] {
			names = append(names, fmt.Sprintf("%d %s", n.ID, n.Address))
		}
		lines = append(lines, [2]string{"brokers", fmt.Sprintf("%d live: %s", len(k.Live), strings.Join(names, ", "))},
			[2]string{"topics", fmt.Sprintf("%d with %s, %d of them without a leader", k.Topics, plural(k.Partitions, "partition"), k.Offline)})
	}
	for _, a := range st.Agents {
		lines = append(lines, [2]string{"agent", a.text(st.At)})
	}
	if s := st.Sidecar; s != nil {
		ready := "is ready"
		if !s.Ready {
			ready = "is not ready"
		}
		lines = append(lines, [2]string{"sidecar", fmt.Sprintf("%s at %s %s; Consul session %s; %s here", s.ID, s.Address, ready, s.Session, plural(s.Groups, "group"))})
	}
	for _, m := range st.Missed {
		lines = append(lines, [2]string{"no answer", m})
	}
	for _, l := range lines {
		fmt.Fprintf(&b, "%-10s %s\n", l[0], l[1])
	}
	return b.String()
}

func (a agentSeen) text(now time.Time) string {
	text := fmt.Sprintf("%s: broker %d of %d live, controller %d, Consul session %s", a.Address, a.ID, a.Live, a.Controller, a.Session)
	if a.Controller < 0 {
		text = strings.Replace(text, "controller -1", "no controller", 1)
	}
	switch {
	case a.AsOf.IsZero():
		text += "; it has not reached Consul since its start"
	case now.Sub(a.AsOf) >= staleKnowledge:
		text += fmt.Sprintf("; what it knows is %s old", now.Sub(a.AsOf).Round(time.Second))
	}
	return text
}

func (st clusterStatus) headline() string {
	switch st.State {
	case stateUnknown:
		return "nobody answers"
	case stateDegraded:
		return "degraded: " + plural(len(st.Problems)+st.More, "problem")
	}
	return "well"
}
