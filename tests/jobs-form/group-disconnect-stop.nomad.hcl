job "group-disconnect-stop" {
  group "g" {
    disconnect {
      stop_on_client_after = "1h"
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
