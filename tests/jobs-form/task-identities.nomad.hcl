job "task-identities" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      identity {
        name = "aws"
        aud = ["sts"]
        ttl = "1h"
        change_mode = "signal"
        change_signal = "SIGUSR1"
        file = true
        filepath = "local/token"
        env = true
        extra_claims = ["a"]
        service_name = ""
      }
      identity {
        env = true
        file = true
      }
      identity {
        name = "other"
      }
    }
  }
}
