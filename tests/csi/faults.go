package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// fault is one line of the script. Where a call comes to the step, the fault happens, `times` times (once where it does not say;
// -1 is for ever), after `skip` that were spared. What happened is noted in a file beside the script before it happens, so that the
// next process does not do it again.
//
// The steps of every call are "begin" (nothing is done) and "end" (all is done, and the answer not sent); those between have names
// in the code: d.step.
type fault struct {
	Call    string `json:"call"`     // a pattern, such as Node*
	Step    string `json:"step"`     // "begin" where it does not say
	Do      string `json:"do"`       // delay, code, lose (the connection breaks), hang (until the caller gives up), die
	Code    string `json:"code"`     // of do = code, such as UNAVAILABLE
	DelayMs int    `json:"delay_ms"` // of do = delay
	Skip    int    `json:"skip"`
	Times   int    `json:"times"`
}

type faults struct {
	path  string
	mutex sync.Mutex
}

// next is the fault that happens at this step of this call, if one does. It counts as having happened.
func (f *faults) next(call, step string) (*fault, error) {
	if f.path == "" {
		return nil, nil
	}
	f.mutex.Lock()
	defer f.mutex.Unlock()
	script, err := os.ReadFile(f.path)
	if os.IsNotExist(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	seen, err := f.seen()
	if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(bytes.NewReader(script))
	for number := 0; lines.Scan(); number++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		one := fault{Step: "begin", Times: 1}
		decoder := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&one); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", f.path, number+1, err)
		}
		matches, err := path.Match(one.Call, call)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", f.path, number+1, err)
		}
		if !matches || one.Step != step || one.Times >= 0 && seen[number] >= one.Skip+one.Times {
			continue
		}
		if err := f.note(number); err != nil {
			return nil, err
		}
		if seen[number] >= one.Skip {
			return &one, nil
		}
	}
	return nil, lines.Err()
}

// seen counts how often each line's step was come to, by every process.
func (f *faults) seen() (map[int]int, error) {
	seen := map[int]int{}
	noted, err := os.ReadFile(f.path + ".seen")
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	for _, line := range bytes.Fields(noted) {
		number, err := strconv.Atoi(string(line))
		if err != nil {
			return nil, err
		}
		seen[number]++
	}
	return seen, nil
}

func (f *faults) note(number int) error {
	file, err := os.OpenFile(f.path+".seen", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(file, number)
	return errorsOf(err, file.Close())
}

type callKey struct{}

// step is a place in a call where the script may have it fail.
func (d *driver) step(ctx context.Context, step string) error {
	call, _ := ctx.Value(callKey{}).(string)
	fault, err := d.faults.next(call, step)
	if err != nil {
		return status.Errorf(codes.Internal, "the script of faults: %v", err)
	}
	if fault == nil {
		return nil
	}
	d.log.write(entry{Phase: "fault", Call: call, Fault: fault.Do + " at " + step})
	switch fault.Do {
	case "delay":
		timer := time.NewTimer(time.Duration(fault.DelayMs) * time.Millisecond)
		defer timer.Stop()
		// Also when the caller has gone: a slow back end does not hear of it.
		<-timer.C
		return nil
	case "code":
		var code codes.Code
		if err := code.UnmarshalJSON([]byte(strconv.Quote(fault.Code))); err != nil {
			return status.Errorf(codes.Internal, "the script of faults: %v", err)
		}
		return status.Errorf(code, "the script says so, at %s", step)
	case "lose":
		d.socket.breakAll()
		return status.Error(codes.Unavailable, "lost")
	case "hang":
		<-ctx.Done()
		return ctx.Err()
	case "die":
		// At once, and no signal: as pid 1 of a namespace the process does not hear its own.
		os.Exit(137)
	}
	return status.Errorf(codes.Internal, "the script of faults: unknown %q", fault.Do)
}

// around logs each call and has the first and the last step of the faults.
func (d *driver) around(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	call := path.Base(info.FullMethod)
	e := about(call, request)
	e.Phase = "begin"
	d.log.write(e)
	answer, err := d.handle(context.WithValue(ctx, callKey{}, call), request, handler)
	e.Phase, e.Code = "end", status.Code(err).String()
	if err != nil {
		e.Message = status.Convert(err).Message()
	}
	d.log.write(e)
	return answer, err
}

func (d *driver) handle(ctx context.Context, request any, handler grpc.UnaryHandler) (any, error) {
	if err := d.step(ctx, "begin"); err != nil {
		return nil, err
	}
	if err := d.authenticate(request); err != nil {
		return nil, err
	}
	answer, err := handler(ctx, request)
	if err != nil {
		return nil, err
	}
	if err := d.step(ctx, "end"); err != nil {
		return nil, err
	}
	return answer, nil
}

// connections is a listener that can break what it has accepted.
type connections struct {
	net.Listener
	mutex sync.Mutex
	open  []net.Conn
}

func (c *connections) Accept() (net.Conn, error) {
	connection, err := c.Listener.Accept()
	if err == nil {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		c.open = append(c.open, connection)
	}
	return connection, err
}

func (c *connections) breakAll() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, connection := range c.open {
		_ = connection.Close() // it may have ended by itself
	}
	c.open = nil
}
