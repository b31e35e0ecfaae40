job "job-reschedule-batch" {
  type = "batch"
  reschedule {
    attempts = 0
  }
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
