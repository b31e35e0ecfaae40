job "web" {
  group "app" {
    task "server" {
      driver = "exec"
      key00 = 0
      key01 = 1
      key02 = 2
      key03 = 3
      key04 = 4
      key05 = 5
      key06 = 6
      key07 = 7
      key08 = 8
      key09 = 9
      key10 = 10
      key11 = 11
      key12 = 12
      key13 = 13
      key14 = 14
      key15 = 15
      key16 = 16
      key17 = 17
      key18 = 18
      key19 = 19
      key20 = 20
      key21 = 21
      key22 = 22
      key23 = 23
      key24 = 24
      key25 = 25
      key26 = 26
      key27 = 27
      key28 = 28
      key29 = 29
    }
  }
}
