# A task that fails once more than its policy allows ends the run.
# status: 9
# prints: try 1
# prints: try 2
# never: try 3

job "broken" {
  type = "batch"

  group "broken" {
    task "broken" {
      driver = "raw_exec"

      restart {
        attempts = 1
        interval = "10m"
        delay    = "100ms"
        mode     = "fail"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "echo x >> local/tries; echo try $(wc -l < local/tries); exit 9"]
      }
    }
  }
}
