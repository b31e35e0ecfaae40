# An HTTP server in an isolated task, on loopback, until Ctrl-C. Perl is part of every Debian.
#
#   agentbin run examples/web.nomad.hcl
#   curl http://127.0.0.1:8080/

variable "port" {
  type    = number
  default = 8080
}

job "web" {
  type = "service"

  group "web" {
    network {
      port "http" {
        static = var.port
      }
    }

    task "server" {
      driver = "exec"

      config {
        command = "/usr/bin/perl"
        args    = ["local/server.pl"]
      }

      kill_signal  = "SIGTERM"
      kill_timeout = "2s"

      template {
        destination = "local/server.pl"
        data        = <<-EOF
          use strict;
          use warnings;
          use IO::Socket::INET;

          $| = 1;
          $SIG{TERM} = sub { print "bye\n"; exit 0 };
          my $server = IO::Socket::INET->new(
              LocalAddr => "127.0.0.1",
              LocalPort => $ENV{NOMAD_PORT_http},
              Listen    => 16,
              ReuseAddr => 1,
          ) or die "cannot listen on port $ENV{NOMAD_PORT_http}: $!\n";
          print "listening on http://127.0.0.1:$ENV{NOMAD_PORT_http}/\n";
          while (my $client = $server->accept) {
              my $request = <$client> // "";
              1 while defined(my $line = <$client>) and $line !~ /^\r?$/;
              my $who  = getpwuid($<) // $<;
              my $body = "Hello from $ENV{NOMAD_TASK_NAME}, run as $who.\n";
              print $client "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: "
                  . length($body) . "\r\nConnection: close\r\n\r\n" . $body;
              close $client;
              $request =~ s/\s+$//;
              print "$request\n";
          }
        EOF
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
