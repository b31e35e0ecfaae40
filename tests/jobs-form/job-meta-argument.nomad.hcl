job "job-meta-argument" {
  meta = {
    "a.b" = "c"
    n = 1
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
