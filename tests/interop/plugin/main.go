// A plugin made with the real go-plugin, for our host side to launch.
//
// It serves Nomad's protocol version and cookie, and one small service of its own whose messages are
// well-known types, so that nobody needs generated code:
//
//	agentbin.test.Echo/Echo   StringValue -> StringValue  the same text
//	agentbin.test.Echo/Print  StringValue -> Empty        on the plugin's stdout and stderr (the stdio stream)
//	agentbin.test.Echo/Log    StringValue -> Empty        one hclog line on fd 2, with a pair
//	agentbin.test.Echo/Exit   Int32Value  -> Empty        ends the process at once with this status
//
// SHUTDOWN_DELAY_MS in its environment makes it linger after it stopped serving.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

type echo struct {
	plugin.NetRPCUnsupportedPlugin
	log hclog.Logger
}

func (e *echo) GRPCServer(_ *plugin.GRPCBroker, s *grpc.Server) error {
	s.RegisterService(&service, e)
	return nil
}

func (e *echo) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, c *grpc.ClientConn) (any, error) {
	return c, nil
}

func (e *echo) print(text string) {
	fmt.Fprintln(os.Stdout, text)
	fmt.Fprintln(os.Stderr, text)
}

// unary makes a method of one request type out of a plain function.
func unary[In any](name string, do func(*echo, *In) (any, error)) grpc.MethodDesc {
	return grpc.MethodDesc{
		MethodName: name,
		Handler: func(srv any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			in := new(In)
			if err := decode(in); err != nil {
				return nil, err
			}
			return do(srv.(*echo), in)
		},
	}
}

var service = grpc.ServiceDesc{
	ServiceName: "agentbin.test.Echo",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{
		unary("Echo", func(_ *echo, in *wrapperspb.StringValue) (any, error) {
			return wrapperspb.String(in.GetValue()), nil
		}),
		unary("Print", func(e *echo, in *wrapperspb.StringValue) (any, error) {
			e.print(in.GetValue())
			return &emptypb.Empty{}, nil
		}),
		unary("Log", func(e *echo, in *wrapperspb.StringValue) (any, error) {
			e.log.Info(in.GetValue(), "answer", 42)
			return &emptypb.Empty{}, nil
		}),
		unary("Exit", func(_ *echo, in *wrapperspb.Int32Value) (any, error) {
			os.Exit(int(in.GetValue()))
			return nil, nil
		}),
	},
}

func main() {
	// The logger keeps the real fd 2: go-plugin replaces os.Stderr by the stdio stream later.
	log := hclog.New(&hclog.LoggerOptions{Name: "echo", Level: hclog.Trace, Output: os.Stderr, JSONFormat: true})
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: plugin.HandshakeConfig{
			ProtocolVersion:  2,
			MagicCookieKey:   "NOMAD_PLUGIN_MAGIC_COOKIE",
			MagicCookieValue: "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255",
		},
		Plugins:    plugin.PluginSet{"echo": &echo{log: log}},
		GRPCServer: plugin.DefaultGRPCServer,
		Logger:     log,
	})
	if delay, err := strconv.Atoi(os.Getenv("SHUTDOWN_DELAY_MS")); err == nil {
		time.Sleep(time.Duration(delay) * time.Millisecond)
	}
}
